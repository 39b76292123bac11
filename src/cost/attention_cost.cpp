#include "cost/attention_cost.h"

#include <utility>

#include "cost/charged_pairs.h"
#include "cost/rate_lookup.h"
#include "layout/token_layout.h"

namespace longspan {
namespace {

// Of the documents whose cost stands in a table: most of any stream, few enough to make quickly.
constexpr int64_t kShortTokens = 4096;

}  // namespace

AttentionCost::AttentionCost(const AttentionSizes& shape, PassRates rates, Direction direction)
    : rates_(std::move(rates)), flops_per_pair_(longspan::flops_per_pair(shape, direction)) {
  const double head_flops = flops_per_pair_ * static_cast<double>(shape.devices_per_server) /
                            static_cast<double>(shape.query_heads);
  row_flops_per_key_ = head_flops * static_cast<double>(kBlockTokens);
  std::vector<double> whole_s;
  whole_s.reserve(kShortTokens);
  for (int64_t tokens = 0; tokens < kShortTokens; ++tokens) {
    whole_s.push_back(rated_task_s({0, tokens}, {0, tokens}));
  }
  whole_s_ = std::make_shared<const std::vector<double>>(std::move(whole_s));
}

double AttentionCost::rated_task_s(const Range& queries, const Range& keys) const {
  const int64_t pairs = charged_pairs(queries, keys);
  if (pairs == 0) return 0;
  const bool full = keys.end <= queries.begin + 1;
  const RateGrid& grid = full ? rates_.full : rates_.causal;
  return rates_.task_overhead_s +
         static_cast<double>(pairs) * flops_per_pair_ / rate_at(grid, queries.size(), keys.size());
}

double AttentionCost::row_s(int64_t key_rows) const {
  if (rates_.row_flops_per_s <= 0) return 0;
  return static_cast<double>(key_rows) * row_flops_per_key_ / rates_.row_flops_per_s;
}

double AttentionCost::pair_s(int64_t query_rows, int64_t key_rows) const {
  return flops_per_pair_ / rates_.causal.at(query_rows, key_rows);
}

}  // namespace longspan
