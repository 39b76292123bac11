#include "kernels/attention_tiles.h"

#include <algorithm>

namespace longspan {
namespace {

void add_tiles(const AttentionSlice& slice, std::vector<BottomRightTile>* tiles) {
  const auto add = [&](Range query_rows, int64_t keys, bool causal) {
    if (query_rows.empty() || keys <= 0) return;
    // One row sees a prefix of the keys: no diagonal crosses it.
    const bool crossed = causal && query_rows.size() > 1;
    tiles->push_back({slice.query_source,
                      slice.key_source,
                      query_rows,
                      {slice.key_rows.begin, slice.key_rows.begin + keys},
                      crossed});
  };
  const int64_t keys = slice.key_rows.size();
  // Row r of the slice sees min(keys, r + diagonal + 1) keys.
  const int64_t first = slice.query_rows.begin + std::max<int64_t>(0, -slice.diagonal);
  const int64_t all_from = slice.query_rows.begin + std::max<int64_t>(0, keys - slice.diagonal);
  const int64_t end = slice.query_rows.end;
  const Range under_diagonal{std::min(first, end), std::clamp(all_from, std::min(first, end), end)};
  add(under_diagonal, under_diagonal.end - slice.query_rows.begin + slice.diagonal, true);
  add({under_diagonal.end, end}, keys, false);
}

}  // namespace

std::vector<BottomRightTile> bottom_right_tiles(const std::vector<AttentionSlice>& slices) {
  std::vector<BottomRightTile> tiles;
  for (const AttentionSlice& slice : slices) add_tiles(slice, &tiles);
  return tiles;
}

}  // namespace longspan
