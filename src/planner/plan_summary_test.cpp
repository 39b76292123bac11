#include "planner/plan_summary.h"

#include <gtest/gtest.h>

#include "planner/home_plan.h"
#include "planner/planner_test_layouts.h"
#include "planner/random_plan.h"

namespace longspan {
namespace {

TEST(PlanSummary, CountsLoadsAndRows) {
  const auto layout = TokenLayout::make({512}, {.chunks = 1, .shares = {1, 1}});
  const PlanSummary summary = summarize(layout, home_plan(layout, 0, Direction::kBackward));
  const int64_t tile = kBlockTokens * kBlockTokens;
  EXPECT_EQ(summary.servers[0].charged_pairs, 3 * tile);
  EXPECT_EQ(summary.servers[1].charged_pairs, 7 * tile);
  EXPECT_EQ(summary.servers[1].pairs, 512 * 513 / 2 - 256 * 257 / 2);
  EXPECT_EQ(summary.servers[1].key_rows, 512);
  EXPECT_EQ(summary.servers[1].query_rows, 256);
  const RowCounts keys{.key = 256};
  const RowCounts partial_keys{.key = 256, .partial_key = 256};
  EXPECT_EQ(summary.servers[0].out_sent, keys);
  EXPECT_EQ(summary.servers[1].out_received, keys);
  EXPECT_EQ(summary.servers[1].back_sent, partial_keys);
  EXPECT_EQ(summary.servers[0].back_received, partial_keys);
  EXPECT_EQ(summary.servers[1].out_sent, RowCounts{});
  EXPECT_DOUBLE_EQ(summary.imbalance, 1.4);
  EXPECT_DOUBLE_EQ(summary.home_imbalance, 1.4);
}

TEST(PlanSummary, DedicatedServersAreComparedWithTheHomesOfTheTokens) {
  const auto layout = TokenLayout::make({512}, {.chunks = 1, .shares = {1, 1, 0}});
  AttentionPlan plan = home_plan(layout, 0, Direction::kForward);
  std::swap(plan.servers[0].tasks, plan.servers[2].tasks);
  const PlanSummary summary = summarize(layout, plan, {0, 1, 1});
  EXPECT_DOUBLE_EQ(summary.imbalance, 1.4);
  EXPECT_DOUBLE_EQ(summary.home_imbalance, 1.4);
}

// Whatever the plan: the same pairs in all, and what one rank sends another receives.
TEST(PlanSummary, SumsAreThoseOfTheChunk) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    RandomStream random(seed, "plan summary");
    const TokenLayout layout = random_layout(random);
    const PlanSummary summary =
        summarize(layout, random_plan(layout, 0, Direction::kBackward, seed));
    int64_t pairs = 0;
    int64_t expected_pairs = 0;
    int64_t sent_less_received = 0;
    for (const ServerSummary& server : summary.servers) {
      pairs += server.pairs;
      sent_less_received += server.out_sent.query + server.out_sent.key + server.back_sent.key -
                            server.out_received.query - server.out_received.key -
                            server.back_received.key;
    }
    for (const DocumentPart& part : layout.document_parts(layout.chunk(0))) {
      expected_pairs += visible_pairs(part.positions, {0, part.positions.end});
    }
    EXPECT_EQ(pairs, expected_pairs) << "seed " << seed;
    EXPECT_EQ(sent_less_received, 0) << "seed " << seed;
  }
}

}  // namespace
}  // namespace longspan
