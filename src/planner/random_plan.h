// Random valid plans: the adversary of the attention runtime and of the verifier.
//
// Why: a planner exercises few of the liberties that a plan has. These plans use all of them:
// rectangles with any cuts, keys cut too (so partial results), any subset of ranks as servers,
// tasks in any order, launch groups that wait longer than needed, inputs that come by way of ranks
// without use for them, results that are merged on their way or make detours, empty rounds,
// transfers marked partial without need. Each passes verify_plan.
//
//   AttentionPlan plan = random_plan(layout, chunk, Direction::kBackward, seed, {.max_tasks = 8});
//
// The same arguments give the same plan. Pure; any thread.
#pragma once

#include "planner/attention_plan.h"

namespace longspan {

struct RandomPlanOptions {
  int64_t max_tasks = 16;  // in addition to one for each document of the chunk
  int max_rounds = 3;      // of each leg; at least 1
  double relay_probability = 0.3;
  // Per rank, key rows that earlier chunks left there: some are declared resident. Empty: none are.
  std::vector<std::vector<Range>> resident_candidates = {};
};

AttentionPlan random_plan(const TokenLayout& layout, int chunk, Direction direction, uint64_t seed,
                          const RandomPlanOptions& options = {});

// Plans of all chunks. Inside a band of this many chunks a plan may find rows resident that the
// plans run before it left there; 0: no resident rows.
std::vector<ChunkPlans> random_chunk_plans(const TokenLayout& layout, uint64_t seed,
                                           const RandomPlanOptions& options = {},
                                           int resident_band = 0);

}  // namespace longspan
