#include "cost/charged_pairs.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "layout/token_layout.h"

namespace longspan {
namespace {

// Counts the tiles with a visible pair, one by one.
int64_t charged_pairs_by_tile(const Range& queries, const Range& keys) {
  int64_t tiles = 0;
  for (int64_t query = queries.begin; query < queries.end; query += kBlockTokens) {
    const int64_t last_query = std::min(query + kBlockTokens, queries.end) - 1;
    for (int64_t key = keys.begin; key < keys.end; key += kBlockTokens) {
      tiles += key <= last_query ? 1 : 0;
    }
  }
  return tiles * kBlockTokens * kBlockTokens;
}

TEST(ChargedPairs, CountsTilesWithAVisiblePair) {
  EXPECT_EQ(charged_pairs({0, 100}, {0, 100}), 128 * 128);
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    RandomStream random(seed, "charged pairs");
    Range queries{random.between(0, 1500), 0};
    queries.end = queries.begin + random.between(1, 1500);
    Range keys{random.between(0, 1500), 0};
    keys.end = keys.begin + random.between(1, 1500);
    ASSERT_EQ(charged_pairs(queries, keys), charged_pairs_by_tile(queries, keys))
        << "seed " << seed << ", queries " << queries << " x keys " << keys;
  }
}

}  // namespace
}  // namespace longspan
