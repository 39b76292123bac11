// Policies that cut every document: head-tail context parallelism, alone and under WLB packing.
//
//   per_document_head_tail  each document in 2P slices of equal size (the last ones shorter), rank
//                           r takes slices r and 2P - 1 - r; all keys are gathered
//   wlb                     whole documents, longest first, each to the group of ranks with the
//                           least sum of x^2 + x, x = tokens / breakpoint, if the group's tokens
//                           stay within `slack` times the mean, else to the group with the fewest
//                           tokens if it fits there, else by work alone; then per-document
//                           head-tail inside each group. Of all group sizes that divide the ranks,
//                           the one with the lowest predicted makespan.
//
// Token counts of WLB's ranks may differ: the price of packing whole documents. Pure; any thread.
#pragma once

#include "baselines/baseline.h"

namespace longspan {

Baseline per_document_head_tail(const BaselineInput& input);

struct WlbOptions {
  double breakpoint_tokens = 64000;  // at which attention and the rest of a layer cost the same
  double slack = 1.0;
};

// `ranks_per_group` divides the number of ranks.
Baseline wlb_groups(const BaselineInput& input, const WlbOptions& options, int ranks_per_group);
Baseline wlb(const BaselineInput& input, const WlbOptions& options, const PlanningCosts& costs);

}  // namespace longspan
