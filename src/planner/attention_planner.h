// The attention planner: balance that is measured, explained and fast.
//
// Why: ranks have equal tokens but very unequal attention. The planner cuts attention into tasks
// of 128-aligned ranges and places them so that the makespan (plan_prediction.h: busiest server,
// plus exchange that nothing hides) is small, with few bytes on the wire. It is a list of named
// passes over a draft (tile_draft.h), each in its own file, switchable and timed:
//
//   home        every query at home
//   bands       long documents over many ranks: queries meet keys where they live, if that is less
//   balance     servers above the level give shards of long documents to servers below
//   tiles       neighbouring shards of one document share their keys' fetch, if that saves bytes
//   route       rows and rounds of the two legs, launch groups, buffer rows
//   relay       hot senders: ranks that received keys pass them on
//   launch      launches that fill the device
//   choose      the cheapest of the candidates; never worse than the home plan
//   refine      a plan of few tiles improved tile by tile
//
//   PlannedAttention planned = plan_attention(layout, chunk, Direction::kForward, costs);
//   run(planned.plan);
//
// No clock inside decides anything: the same arguments give the same plan on every machine and
// number of threads. Pure; any thread.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "planner/attention_plan.h"
#include "planner/plan_prediction.h"
#include "planner/planning_costs.h"

namespace longspan {

struct PlannerScratch;

struct PassSwitches {
  bool bands = true;
  bool balance = true;
  bool tiles = true;
  bool relay = true;
  bool choose = true;
  bool refine = true;
};

struct AttentionPlannerOptions {
  // Tolerated load above the level, as a fraction of it; one row of tiles is always tolerated.
  double epsilon = 0.005;
  PassSwitches passes = {};
};

struct PassTime {
  std::string_view name;
  double seconds = 0;
};

struct PlannedAttention {
  AttentionPlan plan;
  PlanPrediction prediction;
  std::vector<PassTime> passes;  // in order; a pass that ran for several candidates once in all
};

// `scratch`: memory to work in, for those who plan often (planner_scratch.h).
PlannedAttention plan_attention(const TokenLayout& layout, int chunk, Direction direction,
                                const PlanningCosts& costs,
                                const AttentionPlannerOptions& options = {},
                                PlannerScratch* scratch = nullptr);

}  // namespace longspan
