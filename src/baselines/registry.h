// The baselines by name, as the command and the benchmarks offer them.
//
//   for (const std::string& name : baseline_names()) {
//     const std::optional<Baseline> baseline = make_baseline(name, batch, costs);
//     if (baseline) predict_baseline(batch.layout, *baseline, costs);
//   }
//
// home                        every query stays where its token is
// dp                          a pack for each rank; only where packs and ranks are equal in number
// contiguous, zigzag          context parallelism over slices of the line
// per-document                context parallelism, every document head and tail
// ptrr                        128-row blocks, sorted and dealt in snake order
// chunk-heap, chunk-heap-2048 chunks of 512 or 2048 tokens, equal counts, least loaded first
// wlb                         whole documents packed by work, best of all DP x CP
// published-0.05, -0.1        the published greedy of core attention disaggregation
//
// Pure functions; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "baselines/baseline.h"

namespace longspan {

struct BaselineBatch {
  BaselineInput input;
  // Line positions at which packs begin, and the line's end; empty: there are no packs.
  std::vector<int64_t> pack_borders;
  double wlb_breakpoint_tokens = 64000;
};

std::vector<std::string> baseline_names();

// UserError naming the nearest name if there is no such baseline.
void check_baseline_name(const std::string& name);

// Nothing where the policy does not apply to the batch (dp).
std::optional<Baseline> make_baseline(const std::string& name, const BaselineBatch& batch,
                                      const PlanningCosts& costs);

}  // namespace longspan
