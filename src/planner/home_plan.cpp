#include "planner/home_plan.h"

#include "planner/direct_routing.h"

namespace longspan {

AttentionPlan home_plan(const TokenLayout& layout, int chunk, Direction direction) {
  AttentionPlan plan;
  plan.direction = direction;
  plan.chunk = chunk;
  plan.servers.resize(static_cast<size_t>(layout.num_ranks()));
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    for (const DocumentPart& part : layout.document_parts(layout.piece(chunk, rank))) {
      plan.servers[static_cast<size_t>(rank)].tasks.push_back(
          {part.document, part.positions, {0, part.positions.end}});
    }
  }
  route_directly(layout, &plan);
  return plan;
}

std::vector<ChunkPlans> home_plans(const TokenLayout& layout) {
  std::vector<ChunkPlans> plans;
  for (int chunk = 0; chunk < layout.num_chunks(); ++chunk) {
    plans.push_back({home_plan(layout, chunk, Direction::kForward),
                     home_plan(layout, chunk, Direction::kBackward)});
  }
  return plans;
}

}  // namespace longspan
