// Launch groups: which tasks of a server run together, and what they wait for.
//
// Tasks whose inputs are all at home come first and wait for nothing; the others follow in the
// order in which their inputs arrive. A launch does not end before its longest row of tiles, which
// one multiprocessor walks alone, so a group with less work than that takes some from the group
// before.
//
//   group_by_arrival(layout, &plan);          // needs the out leg and the buffer rows
//   fill_launches(cost, &routed);
//
// Pure; any thread.
#pragma once

#include "cost/attention_cost.h"
#include "planner/routed_plan.h"

namespace longspan {

// Whether the server holds all inputs of the task before the first round.
class LocalInputs {
 public:
  LocalInputs(const TokenLayout& layout, const AttentionPlan& plan, int rank);
  bool hold(const AttentionTask& task) const;

 private:
  const TokenLayout& layout_;
  std::vector<Range> query_rows_;
  std::vector<Range> key_rows_;
};

// Orders each server's tasks by the rounds that they wait for, none first, and forms the groups.
void group_by_arrival(const TokenLayout& layout, AttentionPlan* plan);

// After transfers moved from the first round to later ones: tasks that waited for the first now
// wait for the last that brings their server anything. One launch for all of them takes less time
// than several.
void delay_late_tasks(AttentionPlan* plan);

// Moves tasks of a group to the next one until that fills its launch; groups left empty vanish.
void fill_launches(const AttentionCost& cost, RoutedPlan* routed);

}  // namespace longspan
