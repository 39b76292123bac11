#include "kernels/packed_tiles.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <utility>

#include "base/check.h"

namespace longspan {
namespace {

constexpr int64_t kSquareStepMin = 128;  // rows of a tile of the kernels
constexpr int64_t kSquareSteps = 16;     // between a size and its double

int64_t floor_power(int64_t count) {
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(count)));
}

void add_batches(int64_t size, const std::vector<BottomRightTile>& squares,
                 std::vector<PackedTiles>* batches) {
  const auto count = std::ssize(squares);
  for (int64_t begin = 0; begin < count;) {
    const int64_t end = begin + floor_power(count - begin);
    PackedTiles batch{.causal = true, .square_rows = size};
    for (; begin < end; ++begin) {
      const BottomRightTile& square = squares[static_cast<size_t>(begin)];
      batch.queries.add(square.query_source, square.query_rows, size);
      batch.keys.add(square.key_source, square.key_rows, size);
    }
    batches->push_back(std::move(batch));
  }
}

}  // namespace

void Packing::add(int32_t source, const Range& range, int64_t room) {
  const bool touches = !pieces.empty() && pieces.back().source == source &&
                       pieces.back().rows.end == range.begin &&
                       pieces.back().packed_end() == rows();
  if (touches) {
    pieces.back().rows.end = range.end;
  } else {
    pieces.push_back({source, range, rows()});
  }
  const int64_t end = rows() + room;
  LONGSPAN_CHECK(end <= std::numeric_limits<int32_t>::max(), end, " rows in one launch");
  ends.push_back(static_cast<int32_t>(end));
  rows_max = std::max(rows_max, room);
}

std::vector<Range> filling_of(const Packing& packing) {
  std::vector<Range> filling;
  int64_t filled = 0;
  const auto fill_to = [&](int64_t end) {
    if (end > filled) filling.push_back({filled, end});
  };
  for (const PackedPiece& piece : packing.pieces) {
    fill_to(piece.packed_begin);
    filled = piece.packed_end();
  }
  fill_to(packing.rows());
  return filling;
}

int64_t square_size(int64_t rows) {
  const int64_t step = std::max(kSquareStepMin, floor_power(rows) / kSquareSteps);
  return (rows + step - 1) / step * step;
}

std::vector<PackedTiles> packed_tiles(const std::vector<AttentionSlice>& slices, bool squares) {
  std::map<int64_t, std::vector<BottomRightTile>> by_size;
  PackedTiles causal{.causal = true};
  PackedTiles full;
  for (const BottomRightTile& tile : bottom_right_tiles(slices)) {
    const int64_t rows = tile.query_rows.size();
    const bool square = tile.causal && rows == tile.key_rows.size();
    if (squares && square && rows >= kSquareRowsMin) {
      by_size[square_size(rows)].push_back(tile);
      continue;
    }
    PackedTiles& call = tile.causal ? causal : full;
    call.queries.add(tile.query_source, tile.query_rows, rows);
    call.keys.add(tile.key_source, tile.key_rows, tile.key_rows.size());
  }
  std::vector<PackedTiles> all;
  for (const auto& [size, tiles] : by_size) add_batches(size, tiles, &all);
  for (PackedTiles* call : {&causal, &full}) {
    if (call->queries.rows() > 0) all.push_back(std::move(*call));
  }
  return all;
}

}  // namespace longspan
