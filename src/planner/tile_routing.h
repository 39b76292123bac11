// Pass "route": from tiles on servers to a complete plan.
//
// Tasks with neighbours joined, buffer rows, one round in each leg and launch groups, in one sweep
// over the tiles. Given the tasks, the plan is that of route_directly (direct_routing.h); this one
// is many times faster, since planning must take less than a millisecond for 64 servers.
//
//   RoutedPlan routed = route_tiles(draft);
//
// Every tile must be placed. Pure; any thread.
#pragma once

#include "planner/routed_plan.h"
#include "planner/tile_draft.h"

namespace longspan {

RoutedPlan route_tiles(const TileDraft& draft);

}  // namespace longspan
