// Packed calls hold the tiles of their slices, each once; squares are filled up to few sizes, in
// batches of powers of two; pieces and filling tile the packed rows.
#include "kernels/packed_tiles.h"

#include <gtest/gtest.h>

#include <bit>
#include <set>
#include <tuple>

#include "base/random.h"

namespace longspan {
namespace {

// (query source, first and last row, key source, first and last row, causal)
using Tile = std::tuple<int32_t, int64_t, int64_t, int32_t, int64_t, int64_t, bool>;

Tile as_tile(const BottomRightTile& tile) {
  return {tile.query_source,   tile.query_rows.begin, tile.query_rows.end, tile.key_source,
          tile.key_rows.begin, tile.key_rows.end,     tile.causal};
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

// The rows of tile `idx` of a packing, without its filling.
std::pair<int32_t, Range> tile_rows(const Packing& packing, size_t idx) {
  const PackedRow first = row_at(packing, packing.ends[idx]);
  Range rows{first.row, first.row};
  for (int64_t at = packing.ends[idx]; at < packing.ends[idx + 1]; ++at) {
    const PackedRow found = row_at(packing, at);
    if (found.row < 0) break;
    EXPECT_EQ(found.source, first.source);
    EXPECT_EQ(found.row, rows.end);
    ++rows.end;
  }
  return {first.source, rows};
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

class RandomSlices : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(PackedTiles, RandomSlices, testing::Bool());

TEST_P(RandomSlices, EveryTileStandsInOneCall) {
  const bool squares = GetParam();
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed, "slices");
    const std::vector<AttentionSlice> slices = random_slices(&random);
    std::multiset<Tile> expected;
    for (const BottomRightTile& tile : bottom_right_tiles(slices)) expected.insert(as_tile(tile));
    std::multiset<Tile> found;
    for (const PackedTiles& call : packed_tiles(slices, squares)) {
      expect_tiled(call.queries);
      expect_tiled(call.keys);
      const size_t tiles = call.queries.ends.size() - 1;
      ASSERT_EQ(call.keys.ends.size() - 1, tiles);
      if (call.square_rows > 0) {
        EXPECT_TRUE(squares && call.causal && std::has_single_bit(tiles));
        EXPECT_EQ(call.queries.ends, call.keys.ends);
        EXPECT_EQ(call.queries.rows(), static_cast<int64_t>(tiles) * call.square_rows);
      } else {
        EXPECT_TRUE(filling_of(call.queries).empty() && filling_of(call.keys).empty());
      }
      for (size_t idx = 0; idx < tiles; ++idx) {
        const auto [query_source, queries] = tile_rows(call.queries, idx);
        const auto [key_source, keys] = tile_rows(call.keys, idx);
        found.insert({query_source, queries.begin, queries.end, key_source, keys.begin, keys.end,
                      call.causal});
        if (call.square_rows > 0) {
          EXPECT_EQ(call.square_rows, square_size(queries.size()));
        }
      }
    }
    EXPECT_EQ(found, expected);
  }
}

TEST(PackedTiles, WholeDocumentsOfOneSizeAreOnePieceWithoutFilling) {
  std::vector<AttentionSlice> slices;
  for (int32_t document = 0; document < 4; ++document) {
    const Range rows{document * 2048, (document + 1) * 2048};
    slices.push_back({document, 0, 0, rows, rows, 0});
  }
  const std::vector<PackedTiles> calls = packed_tiles(slices, true);
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls.front().square_rows, 2048);
  EXPECT_EQ(calls.front().queries.pieces.size(), 1U);
}

TEST(PackedTiles, SizesOfSquaresAreFewAndNear) {
  std::set<int64_t> sizes;
  for (int64_t rows = kSquareRowsMin; rows <= 65536; ++rows) {
    const int64_t size = square_size(rows);
    ASSERT_GE(size, rows);
    ASSERT_LE(size, rows + std::max<int64_t>(127, rows / 16)) << rows;
    ASSERT_EQ(square_size(size), size);
    sizes.insert(size);
  }
  EXPECT_LE(sizes.size(), 90U);
}

}  // namespace
}  // namespace longspan
