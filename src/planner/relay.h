// Pass "relay": ranks that received rows pass them on.
//
// Why: every server that works on a long document needs its keys, and the few homes of that
// document would send the same rows to all of them: up to 13 times the mean rank's bytes, while the
// takers' links stand idle for sending. So
//
//   nodes   of several takers in one node one gets the rows from outside and passes them on
//           inside, where links are faster
//   hot     a home that would still send much more than others sends fewer copies, cut into
//           parts, each to a few takers that send their part to the rest in a round between
//
// The bytes that reach a rank stay the same; what crosses nodes and what a single rank sends falls.
// Queries that several servers work on are relayed likewise. Results take the same ways in reverse
// and are merged where they meet.
//
//   LegClocks clocks = play_legs(routed.plan, costs);
//   relay_rows(layout, costs, &routed, &clocks, &scratch);   // a plan with one round in each leg
//
// A plan whose exchange is hidden and evenly sent is left as it is, and so is one whose exchange
// would then be late by more than before. relay_ways.h finds the ways. Pure; any thread.
#pragma once

#include "planner/prediction_parts.h"
#include "planner/relay_scratch.h"

namespace longspan {

// Returns whether the plan changed. `clocks`: of its legs, before and after.
bool relay_rows(const TokenLayout& layout, const PlanningCosts& costs, RoutedPlan* routed,
                LegClocks* clocks, RelayScratch* scratch);

}  // namespace longspan
