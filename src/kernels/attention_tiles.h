// Slices of attention as kernels of libraries take them: full rectangles, and bottom-right causal
// tiles in which the last query row sees every key.
//
//   for (const BottomRightTile& tile : bottom_right_tiles(slices)) ...
//
// A slice (kernels/cpu/blocked_attention.h) has any diagonal. Rows that see no key and keys that no
// row sees are cut off; a slice whose first rows stand under the diagonal and whose last rows see
// all keys becomes two tiles. So every row of a tile sees a key, and together the tiles hold each
// visible pair once. Tiles stand in the order of their slices.
// Pure function.
#pragma once

#include <vector>

#include "base/range.h"
#include "kernels/cpu/blocked_attention.h"

namespace longspan {

struct BottomRightTile {
  int32_t query_source = 0;
  int32_t key_source = 0;
  Range query_rows;
  Range key_rows;
  // Query row i sees keys [0, key_rows.size() - query_rows.size() + i]; otherwise all.
  bool causal = false;
};

std::vector<BottomRightTile> bottom_right_tiles(const std::vector<AttentionSlice>& slices);

}  // namespace longspan
