#include "planner/plan_chunks.h"

#include "planner/plan_verifier.h"

namespace longspan {
namespace {

#ifdef LONGSPAN_VERIFY
constexpr bool kAlwaysVerify = true;
#else
constexpr bool kAlwaysVerify = false;
#endif

}  // namespace

std::vector<ChunkPlans> plan_chunks(const TokenLayout& layout, const PlanChunksOptions& options) {
  std::vector<ChunkPlans> plans;
  for (int chunk = 0; chunk < layout.num_chunks(); ++chunk) {
    plans.push_back({balanced_plan(layout, chunk, Direction::kForward, options.planner),
                     balanced_plan(layout, chunk, Direction::kBackward, options.planner)});
  }
  if (kAlwaysVerify || options.verify) {
    // The planner declares no rows resident, so bands do not matter.
    verify_chunk_plans(layout, plans, 1, {.require_block_alignment = true});
  }
  return plans;
}

}  // namespace longspan
