// Pass "relay": ranks that received rows pass them on, where their home would send too much.
//
// Why: every server that works on a long document needs its keys, and the few homes of that
// document would send the same rows to all of them: up to 13 times the mean rank's bytes. A
// receiver that has the rows after the first round sends them to others in a second one. The bytes
// on the wire stay the same, their peak falls. Queries that several servers work on are relayed
// likewise. Results take the same ways in reverse and are merged where they meet.
//
//   relay_rows(layout, costs, &plan);      // a plan with one round in each leg, e.g. of
//   route_tiles
//
// A plan without hot senders is left as it is, and so is one whose exchange would then take longer
// than before and longer than its window. Pure; any thread.
#pragma once

#include "planner/planning_costs.h"

namespace longspan {

// Returns whether the plan changed.
bool relay_rows(const TokenLayout& layout, const PlanningCosts& costs, AttentionPlan* plan);

}  // namespace longspan
