// A plan under way through the last passes, with what they would otherwise compute again.
//
// Launch groups and prediction ask what each task costs, which the tiles know already; relays ask
// which rows have several parts, which routing has found out. None of it is part of the plan.
//
//   RoutedPlan routed = route_tiles(draft);
//   predict(routed.plan, routed.task_s.of(rank), ...)
//
// Value; one thread.
#pragma once

#include <span>
#include <vector>

#include "planner/held_rows.h"

namespace longspan {

// Seconds of tasks at speed 1, server by server, in the order of ServerPlan::tasks.
struct TaskSeconds {
  std::vector<double> seconds;
  std::vector<size_t> first;  // of each server

  std::span<const double> of(size_t rank) const {
    const size_t end = rank + 1 < first.size() ? first[rank + 1] : seconds.size();
    return {seconds.data() + first[rank], end - first[rank]};
  }
};

struct RoutedPlan {
  AttentionPlan plan;
  TaskSeconds task_s;
  RowsWithOtherParts other_parts;
};

}  // namespace longspan
