// Every visible pair of every slice stands in exactly one tile, and no other pair does; every row
// of a tile sees a key. Embedding pieces: every row once, in order, and partial sums where due.
#include "kernels/attention_tiles.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/random.h"
#include "kernels/attention_shape.h"
#include "kernels/embedding_pieces.h"

namespace longspan {
namespace {

using Pairs = std::multiset<std::pair<int64_t, int64_t>>;

Pairs pairs_of(const AttentionSlice& slice) {
  const AttentionTile tile{slice.query_rows.size(), slice.key_rows.size(), slice.diagonal};
  Pairs pairs;
  for (int64_t row = 0; row < tile.query_rows; ++row) {
    for (int64_t key = 0; key < tile.visible_keys(row); ++key) {
      pairs.emplace(slice.query_rows.begin + row, slice.key_rows.begin + key);
    }
  }
  return pairs;
}

Pairs pairs_of(const std::vector<BottomRightTile>& tiles) {
  Pairs pairs;
  for (const BottomRightTile& tile : tiles) {
    const int64_t rows = tile.query_rows.size();
    const int64_t keys = tile.key_rows.size();
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t visible = tile.causal ? keys - rows + row + 1 : keys;
      EXPECT_GE(visible, 1) << "row " << row << " of " << rows << " x " << keys;
      for (int64_t key = 0; key < visible; ++key) {
        pairs.emplace(tile.query_rows.begin + row, tile.key_rows.begin + key);
      }
    }
  }
  return pairs;
}

TEST(BottomRightTiles, HoldEachVisiblePairOnce) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    RandomStream random(seed, "tiles");
    const int64_t query_begin = random.between(0, 5);
    const int64_t key_begin = random.between(0, 5);
    const AttentionSlice slice{.query_source = 3,
                               .key_source = 7,
                               .query_rows = {query_begin, query_begin + random.between(0, 9)},
                               .key_rows = {key_begin, key_begin + random.between(0, 9)},
                               .diagonal = random.between(-12, 12)};
    const auto tiles = bottom_right_tiles({slice});
    EXPECT_EQ(pairs_of(tiles), pairs_of(slice)) << "seed " << seed;
    EXPECT_LE(tiles.size(), 2u);
    for (const BottomRightTile& tile : tiles) {
      EXPECT_EQ(tile.query_source, 3);
      EXPECT_EQ(tile.key_source, 7);
    }
  }
}

TEST(EmbeddingPieces, HoldEveryRowInOrder) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    RandomStream random(seed, "pieces");
    std::vector<int32_t> tokens(static_cast<size_t>(random.between(0, 3000)));
    const int64_t vocabulary = random.between(1, 40);
    for (int32_t& token : tokens) {
      token = static_cast<int32_t>(random.below(3) == 0 ? 0 : random.between(0, vocabulary - 1));
    }
    const EmbeddingPieces pieces = embedding_pieces(tokens);
    std::map<int32_t, std::vector<int32_t>> expected;
    for (size_t row = 0; row < tokens.size(); ++row) {
      expected[tokens[row]].push_back(static_cast<int32_t>(row));
    }
    std::map<int32_t, std::vector<int32_t>> found;
    std::map<int32_t, std::vector<int32_t>> partials;
    for (const EmbeddingPieces::Piece& piece : pieces.list) {
      EXPECT_LE(piece.end - piece.begin, kEmbeddingPieceRows);
      for (int32_t at = piece.begin; at < piece.end; ++at) {
        found[piece.token].push_back(pieces.order[static_cast<size_t>(at)]);
      }
      if (piece.partial >= 0) partials[piece.token].push_back(piece.partial);
    }
    EXPECT_EQ(found, expected) << "seed " << seed;
    std::map<int32_t, std::vector<int32_t>> summed;
    for (const EmbeddingPieces::Sum& sum : pieces.sums) {
      for (int32_t at = sum.partial_begin; at < sum.partial_end; ++at) {
        summed[sum.token].push_back(at);
      }
    }
    EXPECT_EQ(summed, partials) << "seed " << seed;
  }
}

}  // namespace
}  // namespace longspan
