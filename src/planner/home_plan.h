// The plan that moves no query: each rank computes the attention of its own piece.
//
// One task for each (document, home piece); keys and values of earlier positions are fetched, once
// for each rank that needs them. It is the starting point of balancing, the yardstick that a
// planner must not fall behind, and the plan to return when moving does not pay.
//
//   AttentionPlan plan = home_plan(layout, chunk, Direction::kForward);
//
// Pure; any thread.
#pragma once

#include <vector>

#include "planner/attention_plan.h"

namespace longspan {

AttentionPlan home_plan(const TokenLayout& layout, int chunk, Direction direction);

// Both directions of every chunk.
std::vector<ChunkPlans> home_plans(const TokenLayout& layout);

}  // namespace longspan
