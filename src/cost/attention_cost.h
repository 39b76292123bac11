// What an attention task costs on one server, in seconds, from measured rates.
//
//   AttentionCost cost(shape, profile.forward, Direction::kForward);
//   const double busy_s = cost.launch_s() + cost.task_s({0, 4096}, {0, 4096});
//
// Tasks of a launch group are fused, so a task's cost is what it adds to the launch: its charged
// pairs over the rate of its shape, and an overhead for each task. A launch costs its overhead,
// and no launch ends before its longest row of tiles, which one multiprocessor walks alone
// (row_s). Most tasks of a plan are short documents, whole: what those cost stands in a table.
// Pure; immutable; any thread. The same bits on every machine.
#pragma once

#include <memory>
#include <vector>

#include "base/range.h"
#include "cost/attention_sizes.h"
#include "cost/rate_grid.h"

namespace longspan {

// Measured figures of one direction on one device.
struct PassRates {
  RateGrid causal;  // the last query sees the last key, as in a document or its tail
  RateGrid full;    // every query sees every key
  double task_overhead_s = 0;
  double launch_overhead_s = 0;
  double row_flops_per_s = 0;  // one row of tiles of one head; 0: no floor
  bool operator==(const PassRates&) const = default;
};

class AttentionCost {
 public:
  AttentionCost(const AttentionSizes& shape, PassRates rates, Direction direction);

  // Document positions; 0 for a task without queries or keys.
  double task_s(const Range& queries, const Range& keys) const {
    const auto tokens = static_cast<size_t>(queries.end);
    const bool is_short = queries == keys && queries.begin == 0 && tokens < whole_s_->size();
    return is_short ? (*whole_s_)[tokens] : rated_task_s(queries, keys);
  }
  double launch_s() const { return rates_.launch_overhead_s; }
  // The time of one row of tiles with this many keys.
  double row_s(int64_t key_rows) const;
  // Of one pair in a task of this shape.
  double pair_s(int64_t query_rows, int64_t key_rows) const;

  const PassRates& rates() const { return rates_; }
  double flops_per_pair() const { return flops_per_pair_; }

 private:
  double rated_task_s(const Range& queries, const Range& keys) const;

  PassRates rates_;
  double flops_per_pair_ = 0;
  double row_flops_per_key_ = 0;
  std::shared_ptr<const std::vector<double>> whole_s_;  // [tokens] of a short document
};

}  // namespace longspan
