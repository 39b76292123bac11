#include "planner/tile_borders.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "planner/block_search.h"

namespace longspan {

int64_t border_at_share(const Tile& tile, double share) {
  const double begin = static_cast<double>(tile.queries.begin - tile.keys.begin);
  const double end = static_cast<double>(tile.queries.end - tile.keys.begin);
  const double part = std::clamp(share, 0.0, 1.0) * (end * end - begin * begin);
  return static_cast<int64_t>(std::sqrt(std::max(0.0, begin * begin + part))) + tile.keys.begin;
}

int64_t border_at_cost(const TileDraft& draft, const Tile& tile, double target_s) {
  const Range& queries = tile.queries;
  // The search ends next to the border, whose costs are asked for again.
  struct Known {
    int64_t border = -1;
    double cost_s = 0;
  };
  std::array<Known, 2> known;
  const auto cost_to = [&](int64_t border) {
    if (border <= queries.begin) return 0.0;
    for (const Known& before : known) {
      if (before.border == border) return before.cost_s;
    }
    known = {Known{border, draft.cost_s(tile, {queries.begin, border})}, known[0]};
    return known[0].cost_s;
  };
  // Borders inside the tile are the blocks [first, last]; before and after come begin and end.
  const int64_t first = queries.begin / kBlockTokens + 1;
  const int64_t last = (queries.end - 1) / kBlockTokens;
  // last + 1 stands for the tile's end.
  const int64_t low =
      first_block(first, last + 1, border_at_share(tile, target_s / tile.cost_s) / kBlockTokens,
                  [&](int64_t block) { return cost_to(block * kBlockTokens) >= target_s; });
  const int64_t above = low > last ? queries.end : low * kBlockTokens;
  const int64_t below = std::max(queries.begin, (low - 1) * kBlockTokens);
  return target_s - cost_to(below) < cost_to(above) - target_s ? below : above;
}

}  // namespace longspan
