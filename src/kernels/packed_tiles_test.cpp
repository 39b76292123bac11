// Packed calls hold every visible pair of their slices once; dense ones have few sizes, in batches
// of powers of two; pieces and filling tile the packed rows.
#include "kernels/packed_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/random.h"

namespace longspan {
namespace {

// Each query row of each tile with the keys that it sees, as differences: one key range adds one at
// its begin and takes one at its end, so ranges that touch are as good as one.
using RowKeys = std::map<std::tuple<int32_t, int64_t, int32_t>, std::map<int64_t, int64_t>>;

void add_keys(const std::tuple<int32_t, int64_t, int32_t>& row, const Range& keys, RowKeys* found) {
  std::map<int64_t, int64_t>& of_row = (*found)[row];
  if (++of_row[keys.begin] == 0) of_row.erase(keys.begin);
  if (--of_row[keys.end] == 0) of_row.erase(keys.end);
}

RowKeys expected_keys(const std::vector<AttentionSlice>& slices) {
  RowKeys expected;
  for (const BottomRightTile& tile : bottom_right_tiles(slices)) {
    for (int64_t row = tile.query_rows.begin; row < tile.query_rows.end; ++row) {
      const int64_t end =
          tile.causal ? tile.key_rows.end - (tile.query_rows.end - 1 - row) : tile.key_rows.end;
      add_keys({tile.query_source, row, tile.key_source}, {tile.key_rows.begin, end}, &expected);
    }
  }
  return expected;
}

std::vector<AttentionSlice> random_slices(RandomStream* random) {
  std::vector<AttentionSlice> slices;
  const int64_t count = random->between(1, 30);
  int64_t begin = 0;
  for (int32_t document = 0; document < count; ++document) {
    const int64_t rows = random->between(1, random->below(3) == 0 ? 9000 : 2500);
    const int64_t prefix = random->below(3) == 0 ? random->between(1, 3000) : 0;
    const Range queries{begin + prefix, begin + prefix + rows};
    const Range keys{begin, begin + prefix + rows};
    const int64_t diagonal = random->below(5) == 0 ? keys.size() : prefix;
    const auto source = static_cast<int32_t>(random->below(2));
    slices.push_back({document, source, source, queries, keys, diagonal});
    begin = keys.end + random->between(0, 1) * 100;
  }
  return slices;
}

// The source row that stands at a packed row; -1: filling.
struct PackedRow {
  int32_t source = -1;
  int64_t row = -1;
};

PackedRow row_at(const Packing& packing, int64_t packed) {
  for (const PackedPiece& piece : packing.pieces) {
    if (packed < piece.packed_begin || packed >= piece.packed_end()) continue;
    return {piece.source, piece.rows.begin + packed - piece.packed_begin};
  }
  return {};
}

// The rows of tile `idx` of a packing, which stand at `packed` in it.
struct TileRows {
  int32_t source = 0;
  Range rows;
  Range packed;
};

TileRows tile_rows(const Packing& packing, size_t idx) {
  TileRows found;
  found.source = -1;
  for (int64_t at = packing.ends[idx]; at < packing.ends[idx + 1]; ++at) {
    const PackedRow here = row_at(packing, at);
    if (here.row < 0) continue;
    if (found.source < 0) found = {here.source, {here.row, here.row}, {at, at}};
    EXPECT_EQ(here.source, found.source);
    EXPECT_EQ(here.row, found.rows.end++);
    EXPECT_EQ(at, found.packed.end++);
  }
  return found;
}

void expect_tiled(const Packing& packing) {
  const std::vector<Range> filling = filling_of(packing);
  int64_t rows = 0;
  for (const Range& range : filling) rows += range.size();
  for (const PackedPiece& piece : packing.pieces) rows += piece.rows.size();
  EXPECT_EQ(rows, packing.rows());
  for (const Range& range : filling) {
    EXPECT_EQ(row_at(packing, range.begin).row, -1);
    EXPECT_EQ(row_at(packing, range.end - 1).row, -1);
  }
}

// What the library makes of tile `idx`: dense causal ones are top-left, packed ones bottom-right.
void add_tile_keys(const PackedTiles& call, size_t idx, RowKeys* found) {
  const TileRows queries = tile_rows(call.queries, idx);
  const TileRows keys = tile_rows(call.keys, idx);
  EXPECT_EQ(keys.packed.begin, call.keys.ends[idx]) << "keys without filling before them";
  for (int64_t row = 0; row < queries.rows.size(); ++row) {
    const int64_t packed = queries.packed.begin + row;
    int64_t visible = keys.rows.size();
    if (call.causal && call.dense) {
      visible = packed - call.queries.ends[idx] + 1;
    } else if (call.causal) {
      visible = keys.rows.size() - (call.queries.ends[idx + 1] - 1 - packed);
    } else {
      EXPECT_EQ(keys.packed.size(), call.keys.ends[idx + 1] - call.keys.ends[idx])
          << "filling that every query sees";
    }
    ASSERT_LE(visible, keys.rows.size()) << "sees filling";
    add_keys({queries.source, queries.rows.begin + row, keys.source},
             {keys.rows.begin, keys.rows.begin + visible}, found);
  }
}

void expect_one_shape(const PackedTiles& call, bool split) {
  const auto count = std::ssize(call.queries.ends) - 1;
  const DenseShape shape{count, call.queries.rows_max, call.keys.rows_max, call.causal};
  static const std::vector<DenseShape> known[] = {dense_shapes(12000, false),
                                                  dense_shapes(12000, true)};
  const std::vector<DenseShape>& shapes = known[split ? 1 : 0];
  EXPECT_TRUE(std::find(shapes.begin(), shapes.end(), shape) != shapes.end())
      << count << " x " << shape.query_rows << " x " << shape.key_rows;
  EXPECT_EQ(call.queries.rows(), count * call.queries.rows_max);
  EXPECT_EQ(call.keys.rows(), count * call.keys.rows_max);
  if (call.causal) {
    EXPECT_EQ(call.queries.rows_max, call.keys.rows_max);
  }
}

class RandomSlices : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(PackedTiles, RandomSlices, testing::Values(0, 1, 2));

TEST_P(RandomSlices, EveryVisiblePairStandsOnceInACall) {
  const PackingOptions options{.dense = GetParam() > 0, .split = GetParam() == 2};
  int64_t dense_rows = 0;
  for (uint64_t seed = 0; seed < 15; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed, "slices");
    const std::vector<AttentionSlice> slices = random_slices(&random);
    RowKeys found;
    for (const PackedTiles& call : packed_tiles(slices, options)) {
      expect_tiled(call.queries);
      expect_tiled(call.keys);
      ASSERT_EQ(call.keys.ends.size(), call.queries.ends.size());
      if (call.dense) {
        dense_rows += call.queries.rows();
        expect_one_shape(call, options.split);
      } else {
        EXPECT_TRUE(filling_of(call.queries).empty() && filling_of(call.keys).empty());
      }
      for (size_t idx = 0; idx + 1 < call.queries.ends.size(); ++idx) {
        add_tile_keys(call, idx, &found);
      }
    }
    EXPECT_TRUE(found == expected_keys(slices));
  }
  EXPECT_EQ(dense_rows > 0, options.dense);
}

TEST(PackedTiles, TilesOfWholeSourcesAreOnePart) {
  const std::vector<AttentionSlice> slices = {{0, 0, 0, {3000, 5000}, {0, 5000}, 3000},
                                              {1, 1, 1, {0, 5000}, {0, 5000}, 0},
                                              {2, 1, 0, {5000, 5600}, {0, 3600}, 3000}};
  std::map<int32_t, int64_t> parts;
  for (const PackedTiles& call :
       packed_tiles(slices, {.dense = true, .split = true, .whole_sources = {1}})) {
    for (size_t idx = 0; idx + 1 < call.queries.ends.size(); ++idx) {
      parts[tile_rows(call.queries, idx).source] += 1;
    }
  }
  EXPECT_EQ(parts[1], 2) << "a tile for each slice";
  EXPECT_GT(parts[0], 1);
}

TEST(PackedTiles, AnUnsplitSquareIsOnePart) {
  for (const int64_t rows : {kUnsplitRowsMax, kUnsplitRowsMax + 1}) {
    const auto calls =
        packed_tiles({{0, 0, 0, {0, rows}, {0, rows}, 0}}, {.dense = true, .split = true});
    EXPECT_EQ(calls.size() == 1, rows == kUnsplitRowsMax) << rows;
  }
}

TEST(PackedTiles, AHugeSquareIsBlocks) {
  const std::vector<PackedTiles> calls =
      packed_tiles({{0, 0, 0, {0, 200000}, {0, 200000}, 0}}, {.dense = true, .split = true});
  int64_t pairs = 0;
  for (const PackedTiles& call : calls) {
    const int64_t tiles = std::ssize(call.queries.ends) - 1;
    pairs += tiles * call.queries.rows_max * call.keys.rows_max / (call.causal ? 2 : 1);
    const std::vector<DenseShape> shapes = dense_shapes(200000, true);
    const DenseShape shape{tiles, call.queries.rows_max, call.keys.rows_max, call.causal};
    EXPECT_TRUE(std::find(shapes.begin(), shapes.end(), shape) != shapes.end());
  }
  EXPECT_LE(pairs, 200000.0 * 200000.0 / 2 * 1.05);
}

TEST(PackedTiles, TheTailOfALongDocumentIsRectanglesAndASquare) {
  const std::vector<PackedTiles> calls =
      packed_tiles({{0, 0, 0, {40000, 50000}, {0, 50000}, 40000}}, {.dense = true, .split = true});
  int64_t padded_pairs = 0;
  for (const PackedTiles& call : calls) {
    EXPECT_TRUE(call.dense);
    padded_pairs += call.queries.rows_max * call.keys.rows_max / (call.causal ? 2 : 1);
  }
  EXPECT_LE(padded_pairs, 10000 * 45000 * 1.1);
  EXPECT_LE(calls.size(), 10U);
}

TEST(PackedTiles, WholeDocumentsOfOneSizeAreOnePieceWithoutFilling) {
  std::vector<AttentionSlice> slices;
  for (int32_t document = 0; document < 4; ++document) {
    const Range rows{document * 2048, (document + 1) * 2048};
    slices.push_back({document, 0, 0, rows, rows, 0});
  }
  const std::vector<PackedTiles> calls = packed_tiles(slices, {.dense = true});
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_TRUE(calls.front().dense);
  EXPECT_EQ(calls.front().keys.rows_max, 2048);
  EXPECT_EQ(calls.front().queries.pieces.size(), 1U);
}

TEST(PackedTiles, SizesOfSquaresAreFewAndNear) {
  std::set<int64_t> sizes;
  for (int64_t rows = kDenseRowsMin; rows <= 65536; ++rows) {
    const int64_t size = square_size(rows);
    ASSERT_GE(size, rows);
    ASSERT_LE(size, rows + std::max<int64_t>(127, rows / 16)) << rows;
    ASSERT_EQ(square_size(size), size);
    sizes.insert(size);
  }
  EXPECT_LE(sizes.size(), 90U);
  EXPECT_LE(dense_shapes(65536, true).size(), 140U);
}

}  // namespace
}  // namespace longspan
