// How the blocked attention kernels cut their work. Private to them.
//
// *Lanes*: the queries of a cell that share a key head, row by row, in each row head by head; a
// vector holds several of them, so that masks, maxima and sums need no work across a vector. All
// lanes of a cell go over a block of keys while it is in the cache; a panel of lanes skips the keys
// that none of them sees, so a causal cell wastes no more than a panel does. Blocks are a multiple
// of the product tile's rows.
//
//   const Lanes<float> lanes(shape, rows);   // lanes.count real ones, lanes.padded with the rest
//
// Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention_shape.h"
#include "kernels/cpu/block_product.h"

namespace longspan {

inline constexpr int64_t kCellLanes = 256;
inline constexpr int64_t kKeyBlockRows = 96;
inline constexpr int64_t kPackingLanes = 48;

// Query rows of a cell: equal parts of a range, of at most kCellLanes lanes.
inline int64_t cell_rows(const AttentionShape& shape, int64_t total_rows) {
  const int64_t most = std::max<int64_t>(1, kCellLanes * shape.key_heads / shape.heads);
  const int64_t parts = (total_rows + most - 1) / most;
  return (total_rows + parts - 1) / parts;
}

// Rows of one head, `stride` apart.
template <typename Real>
struct HeadStrip {
  const Real* data;
  int64_t stride;
};

// The same rows side by side in `packed` [rows, width]: rows a power of two apart would share few
// cache sets. Cells of few lanes read the rows too seldom to gain.
template <typename Real>
HeadStrip<Real> packed_rows(const HeadStrip<Real>& strip, int64_t rows, int64_t width,
                            int64_t lanes, Real* packed) {
  if (lanes < kPackingLanes) return strip;
  for (int64_t row = 0; row < rows; ++row) {
    std::copy_n(strip.data + row * strip.stride, width, packed + row * width);
  }
  return {packed, width};
}

template <typename Real>
struct Lanes {
  Lanes(const AttentionShape& shape, int64_t rows)
      : group(shape.heads / shape.key_heads),
        count(rows * group),
        panels((count + kPanelLanes<Real> - 1) / kPanelLanes<Real>),
        padded(panels * kPanelLanes<Real>) {}

  int64_t row(int64_t lane) const { return std::min(lane, count - 1) / group; }
  // The number of the tile's keys that the panel's first, and its last, lane sees.
  int64_t fewest_keys(const AttentionTile& tile, int64_t panel) const {
    return tile.visible_keys(row(panel * kPanelLanes<Real>));
  }
  int64_t most_keys(const AttentionTile& tile, int64_t panel) const {
    return tile.visible_keys(row((panel + 1) * kPanelLanes<Real> - 1));
  }

  int64_t group;   // query heads of a key head
  int64_t count;   // rows * group
  int64_t panels;  // of kPanelLanes each
  int64_t padded;
};

}  // namespace longspan
