// The plans of a whole micro-batch: both directions of every chunk.
//
//   const std::vector<ChunkPlans> plans = plan_chunks(layout, costs, {.planner = {.epsilon =
//   0.05}}); run_attention(layout, plans[chunk].forward, ...);
//
// Each plan is verified if asked for, and always in builds with LONGSPAN_VERIFY (debug builds).
// Pure; any thread.
#pragma once

#include <vector>

#include "planner/attention_planner.h"

namespace longspan {

struct PlanChunksOptions {
  AttentionPlannerOptions planner;
  bool verify = false;
};

// `scratch`: as of plan_attention.
std::vector<ChunkPlans> plan_chunks(const TokenLayout& layout, const PlanningCosts& costs,
                                    const PlanChunksOptions& options,
                                    PlannerScratch* scratch = nullptr);

}  // namespace longspan
