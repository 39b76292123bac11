#include "planner/attention_planner.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "planner/plan_verifier.h"
#include "planner/planner_scratch.h"
#include "planner/planner_test_layouts.h"

namespace longspan {
namespace {

constexpr AttentionSizes kShape{
    .query_heads = 8, .key_heads = 2, .key_width = 64, .value_width = 64};

RateGrid random_grid(RandomStream& random) {
  std::vector<double> rates;
  for (int point = 0; point < 9; ++point) rates.push_back(1e9 * (1 + 9 * random.uniform()));
  return RateGrid({128, 512, 4096}, {128, 2048, 65536}, rates);
}

PassRates random_rates(RandomStream& random) {
  return {.causal = random_grid(random),
          .full = random_grid(random),
          .task_overhead_s = random.below(2) == 0 ? 0 : 1e-6,
          .launch_overhead_s = random.below(2) == 0 ? 0 : 1e-5,
          .row_flops_per_s = random.below(2) == 0 ? 0 : 1e9};
}

// A fraction of cases each: equal and unequal servers, non-servers, base times, windows, slow and
// fast links, several servers to a node.
PlanningCosts random_costs(RandomStream& random, int ranks) {
  const DeviceProfile profile{.forward = random_rates(random), .backward = random_rates(random)};
  const double bandwidth = 1e6 * static_cast<double>(int64_t{1} << random.between(0, 20));
  const ServerLinks links{
      static_cast<int>(random.between(1, 4)), {bandwidth * 8, 1e-6, 1e-7}, {bandwidth, 1e-5, 1e-6}};
  PlanningCosts costs = uniform_costs(kShape, profile, links, ranks);
  if (random.below(2) == 0) {
    for (double& speed : costs.speed) speed = static_cast<double>(random.between(0, 3));
    costs.speed[random.below(static_cast<uint64_t>(ranks))] = 1;
  }
  if (random.below(3) == 0) {
    costs.base_s.resize(static_cast<size_t>(ranks));
    for (double& base : costs.base_s) base = 1e-3 * random.uniform();
  }
  if (random.below(2) == 0) costs.forward.window = costs.backward.window = {1e-3, 1e-3};
  return costs;
}

AttentionPlannerOptions random_options(RandomStream& random) {
  AttentionPlannerOptions options{.epsilon = random.below(2) == 0 ? 0.005 : 0.1 * random.uniform()};
  if (random.below(2) == 0) {
    options.passes = {.bands = random.below(2) == 0,
                      .balance = random.below(4) != 0,
                      .tiles = random.below(2) == 0,
                      .relay = random.below(2) == 0,
                      .choose = random.below(2) == 0};
  }
  return options;
}

void expect_valid(const TokenLayout& layout, const PlanningCosts& costs,
                  const AttentionPlannerOptions& options) {
  for (int chunk = 0; chunk < layout.num_chunks(); ++chunk) {
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      const PlannedAttention planned = plan_attention(layout, chunk, direction, costs, options);
      ASSERT_NO_THROW(verify_plan(layout, planned.plan, {.require_block_alignment = true}));
      const PlannedAttention again = plan_attention(layout, chunk, direction, costs, options);
      ASSERT_EQ(planned.plan, again.plan);
      for (size_t rank = 0; rank < costs.speed.size(); ++rank) {
        ASSERT_TRUE(costs.speed[rank] > 0 || planned.plan.servers[rank].tasks.empty());
      }
    }
  }
}

TEST(AttentionPlanner, RandomRaggedLayoutsGetValidPlansTwiceTheSame) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomStream random(seed, "attention planner");
    const TokenLayout layout = random_layout(random, {.max_ranks = 13});
    const PlanningCosts costs = random_costs(random, layout.num_ranks());
    expect_valid(layout, costs, random_options(random));
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(AttentionPlanner, ManyServersAndLongDocuments) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomStream random(seed, "attention planner at scale");
    constexpr int kRanks[] = {1, 2, 7, 64, 127, 512, 997, 1000};
    const int ranks = kRanks[seed % 8];
    std::vector<int64_t> lengths;
    for (int64_t tokens = 0; tokens < ranks * int64_t{600};) {
      const int64_t longest = int64_t{1} << random.between(0, 20);
      lengths.push_back(random.between(1, longest));
      tokens += lengths.back();
    }
    const auto chunks = static_cast<int>(random.between(1, 3));
    const TokenLayout layout = TokenLayout::make(
        lengths,
        {.chunks = chunks, .shares = std::vector<double>(static_cast<size_t>(ranks), 1.0)});
    const PlanningCosts costs = random_costs(random, ranks);
    expect_valid(layout, costs, random_options(random));
    if (testing::Test::HasFatalFailure()) return;
  }
}

// The yardstick, computed without the planner's other passes.
double home_makespan_s(const TokenLayout& layout, int chunk, Direction direction,
                       const PlanningCosts& costs) {
  return plan_attention(layout, chunk, direction, costs,
                        {.passes = {.bands = false,
                                    .balance = false,
                                    .tiles = false,
                                    .relay = false,
                                    .choose = false,
                                    .refine = false}})
      .prediction.makespan_s;
}

TEST(AttentionPlanner, IsNeverSlowerThanTheHomePlan) {
  int improved = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    RandomStream random(seed, "attention planner against home");
    const TokenLayout layout = random_layout(random, {.allow_empty_ranks = false});
    PlanningCosts costs = random_costs(random, layout.num_ranks());
    for (double& speed : costs.speed) speed = std::max(speed, 1.0);
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      const double home_s = home_makespan_s(layout, 0, direction, costs);
      const auto planned = plan_attention(layout, 0, direction, costs);
      EXPECT_LE(planned.prediction.makespan_s, home_s) << "seed " << seed;
      improved += planned.prediction.makespan_s < 0.9 * home_s ? 1 : 0;
    }
  }
  EXPECT_GT(improved, 50) << "of 300: the test must see plans that help";
}

TEST(AttentionPlanner, KeepsToTheMemoryCapOrSaysThatItCannot) {
  int refused = 0;
  int bound = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    RandomStream random(seed, "attention planner under a cap");
    const TokenLayout layout =
        random_layout(random, {.max_documents = 20, .max_document_tokens = 8000});
    PlanningCosts costs = random_costs(random, layout.num_ranks());
    const auto free = plan_attention(layout, 0, Direction::kForward, costs);
    double most_bytes = 0;
    for (const ServerPrediction& server : free.prediction.servers) {
      most_bytes = std::max(most_bytes, server.memory_bytes);
    }
    costs.memory_cap_bytes = 1 + most_bytes * random.uniform();
    try {
      const auto planned = plan_attention(layout, 0, Direction::kForward, costs);
      ASSERT_NO_THROW(verify_plan(layout, planned.plan)) << "seed " << seed;
      for (const ServerPrediction& server : planned.prediction.servers) {
        EXPECT_LE(server.memory_bytes, costs.memory_cap_bytes) << "seed " << seed;
      }
      bound += planned.plan == free.plan ? 0 : 1;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("memory cap"), std::string::npos);
      ++refused;
    }
  }
  EXPECT_GT(bound, 20) << "the test must see caps that bind";
  EXPECT_GT(refused, 5) << "and caps that nothing meets";
}

TEST(AttentionPlanner, WithFreeLinksTheBusiestServerIsAtTheLevelOrOneRowOfTilesAbove) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RandomStream random(seed, "attention planner with free links");
    const TokenLayout layout =
        random_layout(random, {.max_documents = 30, .max_document_tokens = 20000});
    const PlanningCosts costs = pair_costs(kShape, 1e9, 1e18, layout.num_ranks());
    for (int chunk = 0; chunk < layout.num_chunks(); ++chunk) {
      const auto planned = plan_attention(layout, chunk, Direction::kForward, costs);
      double level_s = 0;
      double row_s = 0;
      for (size_t rank = 0; rank < planned.plan.servers.size(); ++rank) {
        level_s += planned.prediction.servers[rank].compute_s;
        for (const AttentionTask& task : planned.plan.servers[rank].tasks) {
          row_s = std::max(row_s, costs.forward.attention.task_s(
                                      {task.queries.end - 1, task.queries.end}, task.keys));
        }
      }
      level_s /= static_cast<double>(layout.num_ranks());
      EXPECT_LE(planned.prediction.compute_s, std::max(1.02 * level_s, level_s + row_s))
          << "seed " << seed << ", chunk " << chunk;
    }
  }
}

// Rows that travel in the out leg: queries, and keys of earlier chunks.
struct TravellingRows {
  int64_t queries = 0;
  int64_t earlier_keys = 0;
};

TravellingRows travelling_rows(const TokenLayout& layout, const AttentionPlan& plan) {
  TravellingRows rows;
  const int64_t chunk_begin = layout.chunk(plan.chunk).begin;
  for (const Round& round : plan.out) {
    for (const Transfer& transfer : round.transfers) {
      if (transfer.kind == RowKind::kQuery) {
        rows.queries += transfer.line.size();
      } else {
        rows.earlier_keys += intersect(transfer.line, {0, chunk_begin}).size();
      }
    }
  }
  return rows;
}

// Keys of earlier chunks live where these chunks left them. Queries of a late chunk are few beside
// them and go there; a chunk with few keys before it fetches those; and if a query row weighs far
// more than a key row, the late chunk fetches as well.
TEST(AttentionPlanner, LaterChunksSendQueriesOrFetchKeysWhicheverCostsLess) {
  constexpr int kRanks = 16;
  const std::vector<double> shares(kRanks, 1.0);
  PlanningCosts costs = pair_costs(kShape, 1e12, 1e8, kRanks);
  const auto plan = [&](const TokenLayout& layout, int chunk, bool bands) {
    return plan_attention(layout, chunk, Direction::kForward, costs, {.passes = {.bands = bands}});
  };

  const TokenLayout eight = TokenLayout::make({1 << 19}, {.chunks = 8, .shares = shares});
  const PlannedAttention late = plan(eight, 7, true);
  const PlannedAttention late_fetching = plan(eight, 7, false);
  ASSERT_NO_THROW(verify_plan(eight, late.plan));
  EXPECT_GT(travelling_rows(eight, late.plan).queries, eight.chunk(7).size());
  EXPECT_LT(travelling_rows(eight, late.plan).earlier_keys,
            travelling_rows(eight, late_fetching.plan).earlier_keys / 4);
  EXPECT_LT(late.prediction.makespan_s, 0.9 * late_fetching.prediction.makespan_s);

  // The document has 4K tokens in the first chunk, one for 16 of the second.
  const TokenLayout two =
      TokenLayout::make({60 * 1024, 68 * 1024}, {.chunks = 2, .shares = shares});
  const PlannedAttention early = plan(two, 1, true);
  EXPECT_LT(travelling_rows(two, early.plan).queries, two.chunk(1).size());
  EXPECT_GE(travelling_rows(two, early.plan).earlier_keys, 4096 * (kRanks - 1) / 2);
  EXPECT_LE(early.prediction.makespan_s, plan(two, 1, false).prediction.makespan_s);

  costs.forward.bytes.query_out *= 64;
  costs.forward.bytes.query_back *= 64;
  costs.forward.bytes.query_back_partial *= 64;
  const PlannedAttention heavy = plan(eight, 7, true);
  ASSERT_NO_THROW(verify_plan(eight, heavy.plan));
  EXPECT_LT(travelling_rows(eight, heavy.plan).queries,
            travelling_rows(eight, late.plan).queries / 4);
  EXPECT_GT(travelling_rows(eight, heavy.plan).earlier_keys,
            travelling_rows(eight, late.plan).earlier_keys);
}

TEST(AttentionPlanner, PlansAreTheSameWithAnyScratch) {
  PlannerScratch scratch;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    RandomStream random(seed, "planner scratch");
    const TokenLayout layout =
        random_layout(random, {.max_documents = 30, .max_document_tokens = 9000, .max_ranks = 24});
    const PlanningCosts costs = random_costs(random, layout.num_ranks());
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      const PlannedAttention alone = plan_attention(layout, 0, direction, costs);
      const PlannedAttention reused = plan_attention(layout, 0, direction, costs, {}, &scratch);
      ASSERT_EQ(alone.plan, reused.plan) << "seed " << seed;
      ASSERT_EQ(alone.prediction.makespan_s, reused.prediction.makespan_s) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace longspan
