#include "planner/attention_plan.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"

namespace longspan {
namespace {

TEST(AttentionPlan, VisiblePairsAreThoseWithKeyUpToQuery) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    RandomStream random(seed, "visible pairs");
    Range queries{random.between(0, 40), 0};
    queries.end = queries.begin + random.between(0, 40);
    Range keys{random.between(0, 40), 0};
    keys.end = keys.begin + random.between(0, 40);
    int64_t pairs = 0;
    for (int64_t query = queries.begin; query < queries.end; ++query) {
      pairs += intersect(keys, {0, query + 1}).size();
    }
    ASSERT_EQ(visible_pairs(queries, keys), pairs) << queries << " x " << keys;
  }
}

TEST(AttentionPlan, RowMapCountsRowsOfItsRanges) {
  const RowMap map({{10, 20}, {30, 50}});
  EXPECT_EQ(map.num_rows(), 30);
  EXPECT_EQ(map.rows({10, 20}), (Range{0, 10}));
  EXPECT_EQ(map.rows({35, 50}), (Range{15, 30}));
  EXPECT_THROW(map.rows({15, 31}), InternalError);
  EXPECT_THROW(map.rows({0, 1}), InternalError);
  EXPECT_THROW(map.rows({50, 51}), InternalError);
}

TEST(AttentionPlan, FinishPlanDerivesBuffersAndSortsTransfers) {
  const auto layout = TokenLayout::make({10, 20}, {.shares = {1, 1}});
  AttentionPlan plan;
  plan.servers.resize(2);
  plan.servers[1].tasks = {{1, {5, 10}, {0, 10}}, {0, {0, 4}, {0, 4}}, {1, {10, 12}, {0, 3}}};
  const Transfer key{0, 1, RowKind::kKeyValue, {0, 4}, false};
  const Transfer query{0, 1, RowKind::kQuery, {8, 9}, false};
  const Transfer early_query{0, 1, RowKind::kQuery, {2, 3}, false};
  plan.out = {{{key, query, early_query}}};
  finish_plan(layout, &plan);
  EXPECT_EQ(plan.servers[1].query_rows, (std::vector<Range>{{0, 4}, {15, 22}}));
  EXPECT_EQ(plan.servers[1].key_rows, (std::vector<Range>{{0, 4}, {10, 20}}));
  EXPECT_EQ(plan.out[0].transfers, (std::vector<Transfer>{early_query, query, key}));
  EXPECT_EQ(transfers_between(plan.out[0], 0, 1).size(), 3U);
  EXPECT_TRUE(transfers_between(plan.out[0], 1, 0).empty());
}

}  // namespace
}  // namespace longspan
