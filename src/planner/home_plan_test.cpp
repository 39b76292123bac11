#include "planner/home_plan.h"

#include <gtest/gtest.h>

#include "planner/held_rows.h"
#include "planner/plan_verifier.h"
#include "planner/planner_test_layouts.h"

namespace longspan {
namespace {

TEST(HomePlan, IsValidAndMovesNoQuery) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    RandomStream random(seed, "home plan");
    const TokenLayout layout = random_layout(random);
    for (int chunk = 0; chunk < layout.num_chunks(); ++chunk) {
      for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
        const AttentionPlan plan = home_plan(layout, chunk, direction);
        ASSERT_NO_THROW(verify_plan(layout, plan, {.require_block_alignment = true}))
            << "seed " << seed;
        for (const std::vector<Round>* leg : {&plan.out, &plan.back}) {
          for (const Round& round : *leg) {
            for (const Transfer& transfer : round.transfers) {
              EXPECT_EQ(transfer.kind, RowKind::kKeyValue) << "seed " << seed;
            }
          }
        }
        if (direction == Direction::kForward) {
          EXPECT_TRUE(plan.back.empty()) << "seed " << seed;
        }
      }
    }
  }
}

// A document over two ranks: rank 1 fetches what rank 0 has, and returns its gradient, which adds
// to rank 0's own.
TEST(HomePlan, FetchesEarlierKeysAndReturnsTheirGradients) {
  const auto layout = TokenLayout::make({512}, {.chunks = 1, .shares = {1, 1}});
  const AttentionPlan plan = home_plan(layout, 0, Direction::kBackward);
  const Transfer fetch{0, 1, RowKind::kKeyValue, {0, 256}, false};
  const Transfer gradient{1, 0, RowKind::kKeyValue, {0, 256}, true};
  ASSERT_EQ(plan.out.size(), 1U);
  EXPECT_EQ(plan.out[0].transfers, std::vector{fetch});
  ASSERT_EQ(plan.back.size(), 1U);
  EXPECT_EQ(plan.back[0].transfers, std::vector{gradient});
  EXPECT_EQ(plan.servers[1].groups, (std::vector<LaunchGroup>{{1, 0, 1}}));
  EXPECT_EQ(plan.servers[0].groups, (std::vector<LaunchGroup>{{0, 0, 1}}));
}

}  // namespace
}  // namespace longspan
