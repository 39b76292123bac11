#include "kernels/packed_tiles.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace longspan {
namespace {

constexpr int64_t kSquareStepMin = 128;  // rows of a tile of the kernels
constexpr int64_t kSquareSteps = 16;     // between a size and its double
// One square of so many rows fills a GPU by itself.
constexpr int64_t kBatchRowsMax = 8192;
constexpr int64_t kRectangleMax = kUnsplitRowsMax;
constexpr int64_t kSquareMax = 65536;  // longer ones, without `split`, are planned when met
constexpr int64_t kFillingShare = 8;   // of a rectangle's queries may be zeros

int64_t floor_power(int64_t count) {
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(count)));
}

// Tiles of one size that a call may run. Ragged documents seldom share a size, equal ones mostly
// have a power of two: batches of other sizes would be shapes that are planned and never met.
int64_t tiles_max(bool causal, int64_t query_rows) {
  const bool batched = causal && floor_power(query_rows) == query_rows;
  return batched ? std::max<int64_t>(1, kBatchRowsMax / query_rows) : 1;
}

int64_t rectangle_keys(int64_t keys) {
  return std::min(kRectangleMax, floor_power(keys));
}

// The size for the next of `rows` query rows that are left: all of them, if that fills up little of
// the tile.
int64_t rectangle_rows(int64_t rows, int64_t filling_max) {
  const int64_t below = std::max(kRectangleRowsMin, floor_power(rows));
  if (below >= kRectangleMax) return kRectangleMax;
  if (below >= rows) return below;
  const int64_t above = 2 * below;  // no more than the least size twice
  return above - rows <= filling_max || below == kRectangleRowsMin ? above : below;
}

// A tile inside a dense call of a size.
struct DenseTile {
  BottomRightTile tile;
  int64_t front = 0;  // queries of zeros before its own
  int64_t query_rows = 0;
  int64_t key_rows = 0;
};

// Sorts tiles into dense calls and the two packed ones.
class Packer {
 public:
  explicit Packer(const PackingOptions& options) : options_(options) { causal_.causal = true; }

  void add(const BottomRightTile& tile) {
    const int64_t rows = tile.query_rows.size();
    const int64_t before = tile.key_rows.size() - rows;  // keys that every query sees
    if (!options_.dense) return pack(tile);
    if (options_.split && !stays_whole(tile)) return add_blocks(tile);
    if (tile.causal && before == 0 && rows >= kDenseRowsMin) return add_square(tile);
    pack(tile);
  }

  std::vector<PackedTiles> finish() {
    std::vector<PackedTiles> calls;
    for (const auto& [size, tiles] : dense_) add_batches(tiles, &calls);
    for (PackedTiles* call : {&causal_, &full_}) {
      if (call->queries.rows() > 0) calls.push_back(std::move(*call));
    }
    return calls;
  }

 private:
  bool stays_whole(const BottomRightTile& tile) const {
    const std::vector<int32_t>& whole = options_.whole_sources;
    return std::find(whole.begin(), whole.end(), tile.query_source) != whole.end();
  }

  void pack(const BottomRightTile& tile) {
    PackedTiles& call = tile.causal ? causal_ : full_;
    call.queries.add(tile.query_source, tile.query_rows, tile.query_rows.size());
    call.keys.add(tile.key_source, tile.key_rows, tile.key_rows.size());
  }

  void add_dense(const DenseTile& tile) {
    dense_[{tile.tile.causal, tile.query_rows, tile.key_rows}].push_back(tile);
  }

  // A causal tile of at least kDenseRowsMin keys: the whole square over its keys.
  void add_square(const BottomRightTile& tile) {
    const int64_t size = square_size(tile.key_rows.size());
    add_dense({tile, tile.key_rows.size() - tile.query_rows.size(), size, size});
  }

  // Of a long causal tile, blocks of queries with the keys up to their ends.
  void add_blocks(const BottomRightTile& tile) {
    if (!tile.causal) return add_split(tile);
    for (int64_t begin = tile.query_rows.begin; begin < tile.query_rows.end;) {
      BottomRightTile block = tile;
      block.query_rows = {begin, std::min(begin + kRectangleMax, tile.query_rows.end)};
      block.key_rows.end -= tile.query_rows.end - block.query_rows.end;
      add_split(block);
      begin = block.query_rows.end;
    }
  }

  // The keys that all queries see are taken by rectangles, as far as those have sizes for them.
  void add_split(BottomRightTile tile) {
    const int64_t rows = tile.query_rows.size();
    int64_t before = tile.causal ? tile.key_rows.size() - rows : tile.key_rows.size();
    while (rows >= kRectangleRowsMin && before >= kRectangleKeysMin) {
      BottomRightTile part = tile;
      part.causal = false;
      part.key_rows.end = tile.key_rows.begin + rectangle_keys(before);
      add_rectangles(part);
      tile.key_rows.begin = part.key_rows.end;
      before -= part.key_rows.size();
    }
    if (tile.key_rows.empty()) return;
    if (tile.causal && rows >= kDenseRowsMin) return add_square(tile);
    pack(tile);
  }

  // Queries of a full tile whose keys have the size of a rectangle.
  void add_rectangles(const BottomRightTile& tile) {
    const int64_t filling_max = tile.query_rows.size() / kFillingShare;
    for (int64_t begin = tile.query_rows.begin; begin < tile.query_rows.end;) {
      const int64_t left = tile.query_rows.end - begin;
      const int64_t size = rectangle_rows(left, filling_max);
      BottomRightTile part = tile;
      part.query_rows = {begin, begin + std::min(left, size)};
      add_dense({part, 0, size, tile.key_rows.size()});
      begin = part.query_rows.end;
    }
  }

  static void add_batches(const std::vector<DenseTile>& tiles, std::vector<PackedTiles>* calls) {
    const auto count = std::ssize(tiles);
    const int64_t most = tiles_max(tiles.front().tile.causal, tiles.front().query_rows);
    for (int64_t begin = 0; begin < count;) {
      const int64_t end = begin + std::min(most, floor_power(count - begin));
      PackedTiles batch{.causal = tiles.front().tile.causal, .dense = true};
      for (; begin < end; ++begin) {
        const auto& [tile, front, query_rows, key_rows] = tiles[static_cast<size_t>(begin)];
        batch.queries.add(tile.query_source, tile.query_rows, query_rows, front);
        batch.keys.add(tile.key_source, tile.key_rows, key_rows);
      }
      calls->push_back(std::move(batch));
    }
  }

  PackingOptions options_;
  std::map<std::tuple<bool, int64_t, int64_t>, std::vector<DenseTile>, std::greater<>> dense_;
  PackedTiles causal_;
  PackedTiles full_;
};

}  // namespace

void Packing::add(int32_t source, const Range& range, int64_t room, int64_t front) {
  const int64_t begin = rows() + front;
  const bool touches = !pieces.empty() && pieces.back().source == source &&
                       pieces.back().rows.end == range.begin && pieces.back().packed_end() == begin;
  if (touches) {
    pieces.back().rows.end = range.end;
  } else {
    pieces.push_back({source, range, begin});
  }
  const int64_t end = rows() + room;
  LONGSPAN_CHECK(begin + range.size() <= end, range.size(), " rows and ", front, " before them in ",
                 room);
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

std::vector<DenseShape> dense_shapes(int64_t rows_max, bool split) {
  std::vector<DenseShape> shapes;
  // A split square has up to kRectangleMax queries, and before them less than a rectangle's keys.
  const int64_t square_max = split ? kRectangleMax + kRectangleKeysMin - 1 : kSquareMax;
  for (int64_t size = square_size(kDenseRowsMin);
       size <= square_size(std::min(rows_max, square_max)); size = square_size(size + 1)) {
    for (int64_t tiles = 1; tiles <= tiles_max(true, size); tiles *= 2) {
      shapes.push_back({tiles, size, size, true});
    }
  }
  for (int64_t rows = kRectangleRowsMin; split && rows <= kRectangleMax; rows *= 2) {
    for (int64_t keys = kRectangleKeysMin; keys <= std::min(kRectangleMax, rows_max); keys *= 2) {
      shapes.push_back({1, rows, keys, false});
    }
  }
  std::sort(shapes.begin(), shapes.end(), [](const DenseShape& a, const DenseShape& b) {
    const int64_t pairs_a = a.tiles * a.query_rows * a.key_rows;
    const int64_t pairs_b = b.tiles * b.query_rows * b.key_rows;
    return std::tie(pairs_a, a) < std::tie(pairs_b, b);
  });
  return shapes;
}

std::vector<PackedTiles> packed_tiles(const std::vector<AttentionSlice>& slices,
                                      const PackingOptions& options) {
  Packer packer(options);
  for (const BottomRightTile& tile : bottom_right_tiles(slices)) packer.add(tile);
  return packer.finish();
}

}  // namespace longspan
