// Routes a plan whose tasks are placed: every row straight from its home, every result straight
// back.
//
//   plan.servers[rank].tasks = ...;
//   route_directly(layout, &plan);     // now the plan is complete
//
// One out round brings each server the rows that it does not hold, once each. Tasks whose inputs
// are all there come first, as a launch group that waits for nothing; the others follow. One back
// round moves results to their homes. Rounds without transfers are left out.
//
// Pure; any thread.
#pragma once

#include "planner/attention_plan.h"

namespace longspan {

// Completes a plan of which direction, chunk, tasks and resident rows are set.
void route_directly(const TokenLayout& layout, AttentionPlan* plan);

}  // namespace longspan
