#include "planner/plan_chunks.h"

#include "planner/plan_verifier.h"
#include "planner/planner_scratch.h"

namespace longspan {
namespace {

#ifdef LONGSPAN_VERIFY
constexpr bool kAlwaysVerify = true;
#else
constexpr bool kAlwaysVerify = false;
#endif

}  // namespace

std::vector<ChunkPlans> plan_chunks(const TokenLayout& layout, const PlanningCosts& costs,
                                    const PlanChunksOptions& options, PlannerScratch* scratch) {
  PlannerScratch own;
  PlannerScratch* room = scratch != nullptr ? scratch : &own;
  const auto plan = [&](int chunk, Direction direction) {
    return plan_attention(layout, chunk, direction, costs, options.planner, room).plan;
  };
  std::vector<ChunkPlans> plans;
  for (int chunk = 0; chunk < layout.num_chunks(); ++chunk) {
    plans.push_back({plan(chunk, Direction::kForward), plan(chunk, Direction::kBackward)});
  }
  if (kAlwaysVerify || options.verify) {
    // The planner declares no rows resident, so bands do not matter.
    verify_chunk_plans(layout, plans, 1, {.require_block_alignment = true});
  }
  return plans;
}

}  // namespace longspan
