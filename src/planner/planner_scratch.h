// Memory that planning works in, kept from plan to plan.
//
// Why: a plan takes less than a millisecond, and a good part of that would go into asking for lists
// of tiles and transfers, and touching their pages for the first time. Whoever plans often hands
// the same scratch to every call:
//
//   PlannerScratch scratch;
//   for (int chunk = 0; chunk < layout.num_chunks(); ++chunk) {
//     plan_attention(layout, chunk, Direction::kForward, costs, options, &scratch);
//   }
//
// What it holds between calls means nothing: the plan is the same with any scratch, used for any
// layout before, or none. One call at a time may use it.
#pragma once

#include <utility>
#include <vector>

#include "planner/relay_scratch.h"
#include "planner/tile_draft.h"

namespace longspan {

struct PlannerScratch {
  // Empty lists with memory.
  std::vector<std::vector<Tile>> tile_lists;
  RelayScratch relay;

  std::vector<Tile> take_tile_list() {
    if (tile_lists.empty()) return {};
    std::vector<Tile> list = std::move(tile_lists.back());
    tile_lists.pop_back();
    return list;
  }

  void give_back(TileDraft* draft) {
    std::vector<Tile> list = draft->take_room();
    if (list.capacity() > 0) tile_lists.push_back(std::move(list));
  }
};

}  // namespace longspan
