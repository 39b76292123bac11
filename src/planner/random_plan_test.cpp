#include "planner/random_plan.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "planner/held_rows.h"
#include "planner/plan_verifier.h"
#include "planner/planner_test_layouts.h"

namespace longspan {
namespace {

TEST(RandomPlan, EveryPlanIsValidAndRepeatable) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    RandomStream random(seed, "random plan");
    const TokenLayout layout = random_layout(random);
    const auto band = static_cast<int>(random.between(1, layout.num_chunks()));
    const RandomPlanOptions options{.max_tasks = random.between(0, 30),
                                    .max_rounds = static_cast<int>(random.between(1, 4)),
                                    .relay_probability = random.uniform()};
    const bool resident = random.below(2) == 0;
    const auto plans = random_chunk_plans(layout, seed, options, resident ? band : 0);
    ASSERT_NO_THROW(verify_chunk_plans(layout, plans, band)) << "seed " << seed;
    const auto again = random_chunk_plans(layout, seed, options, resident ? band : 0);
    for (size_t chunk = 0; chunk < plans.size(); ++chunk) {
      EXPECT_EQ(plans[chunk].forward, again[chunk].forward) << "seed " << seed;
      EXPECT_EQ(plans[chunk].backward, again[chunk].backward) << "seed " << seed;
    }
  }
}

// How many plans use each liberty; a generator that lost one would test less in silence.
struct Liberties {
  int cut_keys = 0;
  int several_groups = 0;
  int out_relays = 0;
  int back_relays = 0;
  int home_gives_away = 0;
  int resident_rows = 0;
  int empty_rounds = 0;
  int needless_partial = 0;

  void count(const TokenLayout& layout, const AttentionPlan& plan) {
    for (const ServerPlan& server : plan.servers) {
      several_groups += server.groups.size() > 1;
      resident_rows += !server.resident_key_rows.empty();
      for (const AttentionTask& task : server.tasks) cut_keys += task.keys.begin > 0;
    }
    const auto parts = rows_with_other_parts(layout, plan, RowKind::kQuery);
    for (const Round& round : plan.out) {
      empty_rounds += round.transfers.empty();
      for (const Transfer& transfer : round.transfers) {
        out_relays += layout.home(transfer.line.begin).rank != transfer.source;
      }
    }
    for (const Round& round : plan.back) {
      for (const Transfer& transfer : round.transfers) {
        const int home = layout.home(transfer.line.begin).rank;
        back_relays += home != transfer.destination;
        home_gives_away += home == transfer.source;
        needless_partial += transfer.partial && transfer.kind == RowKind::kQuery &&
                            intersect(parts, {transfer.line}).empty();
      }
    }
  }
};

TEST(RandomPlan, TakesEveryLiberty) {
  Liberties used;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    RandomStream random(seed, "liberties");
    const TokenLayout layout = random_layout(random);
    for (const ChunkPlans& plans : random_chunk_plans(layout, seed, {}, layout.num_chunks())) {
      used.count(layout, plans.forward);
      used.count(layout, plans.backward);
    }
  }
  for (const int times :
       {used.cut_keys, used.several_groups, used.out_relays, used.back_relays, used.home_gives_away,
        used.resident_rows, used.empty_rounds, used.needless_partial}) {
    EXPECT_GE(times, 20);
  }
}

TEST(RandomPlan, ResidentRowsThatNobodyLeftAreCaught) {
  const auto layout = TokenLayout::make({1024}, {.chunks = 2, .shares = {1, 1}});
  auto plans = random_chunk_plans(layout, 1, {.max_tasks = 0});
  plans[1].forward =
      random_plan(layout, 1, Direction::kForward, 1,
                  {.max_tasks = 0, .resident_candidates = {{{256, 512}}, {{0, 256}}}});
  verify_plan(layout, plans[1].forward);
  EXPECT_THROW(verify_chunk_plans(layout, plans, 1), InternalError);
}

}  // namespace
}  // namespace longspan
