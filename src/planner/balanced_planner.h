// The first planner: spreads the attention of a chunk evenly over its servers.
//
// Why: ranks have equal tokens but very unequal attention, since a token late in a long document
// sees far more keys than one in a short document. The planner starts from the home plan and moves
// work from the most loaded server to those below the mean level, whole tasks or the last queries
// of one (they carry the most work for each row), until no load is above (1 + epsilon) times the
// level. Of the possible moves it takes the one with the most work for each byte that it adds.
// Tasks keep all keys [0, last query], so no result is partial in forward.
//
//   AttentionPlan plan = balanced_plan(layout, chunk, Direction::kForward, {.epsilon = 0.05});
//
// A list of passes over a draft (plan_draft.h): split at homes, place on servers, balance, join
// neighbours, route. Loads count whole tiles (cost/charged_pairs.h); no clock, so the same
// arguments give the same plan. If every rank is a server, no load is above the home plan's
// maximum. Pure; any thread.
#pragma once

#include <vector>

#include "planner/attention_plan.h"

namespace longspan {

struct PlannerOptions {
  // Tolerated load above the mean level, as a fraction of it.
  double epsilon = 0.05;
  // Relative speed of each rank as a server; 0: it runs no tasks. Empty: all ranks have speed 1.
  std::vector<double> server_speed = {};
  // Width of a query row over that of a key row: query heads for each key/value head.
  double query_to_key_width = 4;
};

AttentionPlan balanced_plan(const TokenLayout& layout, int chunk, Direction direction,
                            const PlannerOptions& options = {});

// The speeds of `options` for this many ranks, checked: none negative, at least one positive.
std::vector<double> server_speeds(const PlannerOptions& options, int num_ranks);

}  // namespace longspan
