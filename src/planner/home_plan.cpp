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

}  // namespace longspan
