// Each pass of the planner by itself; attention_planner_test.cpp has them together.

#include <gtest/gtest.h>

#include <set>

#include "planner/direct_routing.h"
#include "planner/least_loaded.h"
#include "planner/pass_balance.h"
#include "planner/pass_bands.h"
#include "planner/pass_tiles.h"
#include "planner/plan_prediction.h"
#include "planner/plan_verifier.h"
#include "planner/planner_test_layouts.h"
#include "planner/relay.h"
#include "planner/tile_routing.h"

namespace longspan {
namespace {

constexpr AttentionSizes kSizes{
    .query_heads = 8, .key_heads = 2, .key_width = 64, .value_width = 64};

TokenLayout even_layout(const std::vector<int64_t>& lengths, int chunks, int ranks) {
  return TokenLayout::make(
      lengths, {.chunks = chunks, .shares = std::vector<double>(static_cast<size_t>(ranks), 1.0)});
}

double most_sent_bytes(const TokenLayout& layout, const AttentionPlan& plan,
                       const PlanningCosts& costs) {
  double most = 0;
  for (const ServerPrediction& server : predict(layout, plan, costs).servers) {
    most = std::max(most, server.out.sent_bytes);
  }
  return most;
}

TEST(PassRoute, MakesThePlanOfDirectRouting) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    RandomStream random(seed, "tile routing");
    const TokenLayout layout = random_layout(random);
    const PlanningCosts costs = alike_costs(layout.num_ranks());
    const auto chunk = static_cast<int>(random.below(static_cast<uint64_t>(layout.num_chunks())));
    const auto direction = random.below(2) == 0 ? Direction::kForward : Direction::kBackward;
    TileDraft draft(layout, chunk, direction, costs);
    for (size_t idx = 0, tiles = draft.tiles().size(); idx < tiles; ++idx) {
      const auto server = static_cast<int>(random.below(static_cast<uint64_t>(layout.num_ranks())));
      const Range queries = draft.tile(idx).queries;
      if (random.below(2) == 0) continue;
      draft.give_queries(idx, {random.between(queries.begin, queries.end - 1), queries.end},
                         server);
    }
    const AttentionPlan routed = route_tiles(draft).plan;
    AttentionPlan direct{.direction = direction, .chunk = chunk};
    direct.servers.resize(routed.servers.size());
    for (size_t rank = 0; rank < routed.servers.size(); ++rank) {
      direct.servers[rank].tasks = routed.servers[rank].tasks;
    }
    route_directly(layout, &direct);
    ASSERT_EQ(routed, direct) << "seed " << seed;
    ASSERT_NO_THROW(verify_plan(layout, routed)) << "seed " << seed;
  }
}

TEST(PassBalance, UnequalSpeedsAndBaseTimesMeetOneLevel) {
  const TokenLayout layout = even_layout({200'000, 3'000, 40'000, 500}, 1, 5);
  PlanningCosts costs = alike_costs(5);
  costs.speed = {1, 2, 0, 1, 0.5};
  costs.base_s = {0, 0.5, 0, 0.1, 0};
  TileDraft draft(layout, 0, Direction::kForward, costs);
  balance(0.005, &draft);
  const double level_s = water_level_s(draft.total_s(), costs.speed, costs.base_s);
  for (const int rank : {0, 1, 3, 4}) {
    const auto idx = static_cast<size_t>(rank);
    EXPECT_NEAR(costs.base_s[idx] + draft.load_s(rank) / costs.speed[idx], level_s, 0.01 * level_s)
        << "rank " << rank;
  }
  EXPECT_EQ(draft.load_s(2), 0);
}

// Passes look at touched tiles only, so none that changed may be missing.
TEST(TileDraft, EveryTileThatIsNotAsItWasCutIsTouchedOnce) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RandomStream random(seed, "touched tiles");
    const TokenLayout layout = random_layout(random, {.max_documents = 20});
    PlanningCosts costs = alike_costs(layout.num_ranks());
    if (layout.num_ranks() > 1) costs.speed[0] = 0;
    const TileDraft home(layout, 0, Direction::kForward, costs);
    TileDraft draft = home;
    for (size_t idx = 0, tiles = draft.tiles().size(); idx < tiles; ++idx) {
      if (random.below(3) != 0) continue;
      const auto server = static_cast<int>(random.below(costs.speed.size()));
      const Range queries = draft.tile(idx).queries;
      draft.give_queries(idx, {random.between(queries.begin, queries.end - 1), queries.end},
                         server);
    }
    if (!draft.tiles().empty() && random.below(2) == 0) {
      const Tile whole = draft.tile(random.below(draft.tiles().size()));
      draft.replace_document(whole.document, {whole});
    }
    std::set<size_t> touched(draft.touched().begin(), draft.touched().end());
    ASSERT_EQ(touched.size(), draft.touched().size()) << "seed " << seed;
    for (int rank = 0; rank < layout.num_ranks(); ++rank) {
      size_t original = home.first_tiles(rank).begin;
      const IndexRange own = draft.first_tiles(rank);
      for (size_t idx = own.begin; idx < own.end; ++idx, ++original) {
        const Tile& tile = draft.tile(idx);
        while (home.tile(original).document != tile.document) ++original;
        const Tile& cut = home.tile(original);
        const bool is_as_cut = tile.server == rank && tile.queries == cut.queries;
        ASSERT_EQ(tile.home, rank);
        ASSERT_EQ(draft.is_touched(idx), touched.contains(idx)) << "seed " << seed;
        ASSERT_TRUE(is_as_cut || touched.contains(idx)) << "seed " << seed << ", tile " << idx;
      }
    }
    const size_t cut_tiles = draft.first_tiles(layout.num_ranks() - 1).end;
    for (size_t idx = cut_tiles; idx < draft.tiles().size(); ++idx) {
      ASSERT_TRUE(touched.contains(idx) && draft.is_stray(idx)) << "seed " << seed;
    }
  }
}

TEST(LeastLoaded, IsTheServerThatLacksMostForItsSpeed) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    RandomStream random(seed, "least loaded");
    const TokenLayout layout = random_layout(random, {.max_documents = 60, .max_ranks = 70});
    PlanningCosts costs = alike_costs(layout.num_ranks());
    for (double& speed : costs.speed) speed = static_cast<double>(random.below(3));
    costs.speed[random.below(costs.speed.size())] = 1;
    TileDraft draft(layout, 0, Direction::kForward, costs);
    BalanceLevels levels(draft, 0.01);
    levels.set(0);
    LeastLoaded least_loaded(draft, levels);
    for (int move = 0; move < 40 && !draft.tiles().empty(); ++move) {
      int expected = kUnplaced;
      double most = 0;
      for (int rank = 0; rank < draft.num_ranks(); ++rank) {
        if (!draft.is_server(rank)) continue;
        const double lacks = levels.deficit_s(rank) / costs.speed[static_cast<size_t>(rank)];
        if (expected != kUnplaced && lacks <= most) continue;
        expected = rank;
        most = lacks;
      }
      ASSERT_EQ(least_loaded.rank(), expected) << "seed " << seed;
      const size_t tile = random.below(draft.tiles().size());
      if (draft.tile(tile).server != kUnplaced) least_loaded.note_change(draft.tile(tile).server);
      draft.place(tile, expected);
      least_loaded.note_change(expected);
    }
  }
}

// Documents so long that the keys of one fill the window: no server may settle the remainders of
// two.
TEST(PassBalance, KeysInTimeKeepOneServerFromWaitingForManyKeys) {
  std::vector<int64_t> lengths = {1 << 18, 1 << 18, 1 << 17};
  for (int idx = 0; idx < 24 * 32; ++idx) lengths.push_back(2048);
  const TokenLayout layout = even_layout(lengths, 1, 32);
  PlanningCosts costs = pair_costs(kSizes, 1e12, 1e9, 32);
  const double keys_s = (1 << 18) * costs.forward.bytes.key_out / 1e9;
  costs.forward.window = {keys_s, keys_s};
  const auto longest_wait_s = [&](bool keys_in_time) {
    TileDraft draft(layout, 0, Direction::kForward, costs);
    balance(0.01, &draft, keys_in_time);
    const AttentionPlan plan = route_tiles(draft).plan;
    EXPECT_NO_THROW(verify_plan(layout, plan, {.require_block_alignment = true}));
    double most_bytes = 0;
    for (const ServerPrediction& server : predict(layout, plan, costs).servers) {
      most_bytes = std::max(most_bytes, server.out.received_bytes);
    }
    return most_bytes / 1e9;
  };
  EXPECT_GT(longest_wait_s(false), 1.5 * keys_s);
  EXPECT_LE(longest_wait_s(true), keys_s);
}

TEST(PassTiles, SharedKeysAreFewerBytesForTheSameWork) {
  // One long document on two of 32 ranks: many servers take neighbouring queries of it.
  std::vector<int64_t> lengths = {1 << 20};
  for (int short_documents = 0; short_documents < 15 * 64; ++short_documents) {
    lengths.push_back(1 << 14);
  }
  const TokenLayout layout = even_layout(lengths, 1, 32);
  const PlanningCosts costs = pair_costs(kSizes, 1e12, 1e9, 32);
  TileDraft draft(layout, 0, Direction::kBackward, costs);
  balance(0.005, &draft);
  const double before_bytes = predict(layout, route_tiles(draft).plan, costs).total_bytes;
  const double before_s = draft.total_s();
  ASSERT_TRUE(share_keys(&draft));
  EXPECT_LT(predict(layout, route_tiles(draft).plan, costs).total_bytes, 0.9 * before_bytes);
  EXPECT_NEAR(draft.total_s(), before_s, 0.01 * before_s);
  EXPECT_NO_THROW(verify_plan(layout, route_tiles(draft).plan, {.require_block_alignment = true}));
}

TEST(PassBands, QueriesMeetTheKeysOfALongDocumentWhereTheyLive) {
  const TokenLayout layout = even_layout({1 << 19}, 8, 16);
  const PlanningCosts costs = pair_costs(kSizes, 1e12, 1e9, 16);
  TileDraft draft(layout, 7, Direction::kForward, costs);
  const double home_bytes = predict(layout, route_tiles(draft).plan, costs).total_bytes;
  ASSERT_TRUE(place_in_bands(&draft));
  const AttentionPlan banded = route_tiles(draft).plan;
  EXPECT_NO_THROW(verify_plan(layout, banded, {.require_block_alignment = true}));
  EXPECT_LT(predict(layout, banded, costs).total_bytes, 0.5 * home_bytes);

  // The first chunk has no keys elsewhere that would be worth it.
  TileDraft first(layout, 0, Direction::kForward, costs);
  EXPECT_FALSE(place_in_bands(&first));
}

TEST(PassRelay, LowersThePeakAndKeepsTheBytes) {
  // The first document's home would send its keys to all others.
  std::vector<int64_t> lengths = {64 * 1024};
  for (int idx = 0; idx < 15 * 64; ++idx) lengths.push_back(1024);
  const TokenLayout layout = even_layout(lengths, 1, 16);
  const PlanningCosts costs = pair_costs(kSizes, 1e12, 1e12, 16);
  RelayScratch scratch;
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    TileDraft draft(layout, 0, direction, costs);
    balance(0.005, &draft);
    RoutedPlan routed = route_tiles(draft);
    const AttentionPlan direct = routed.plan;
    const AttentionPlan& relayed = routed.plan;
    // What the direct ways take is hidden, but only just.
    PlanningCosts patient = costs;
    const PlanPrediction prediction = predict(layout, direct, costs);
    patient.forward.window = patient.backward.window = {prediction.enter_s, prediction.exit_s};
    LegClocks legs = play_legs(direct, patient);
    ASSERT_TRUE(relay_rows(layout, patient, &routed, &legs, &scratch));
    ASSERT_NO_THROW(verify_plan(layout, relayed));
    EXPECT_EQ(relayed.out.size(), 2u);
    EXPECT_LT(most_sent_bytes(layout, relayed, costs),
              0.75 * most_sent_bytes(layout, direct, costs));
    EXPECT_EQ(predict(layout, relayed, costs).total_bytes,
              predict(layout, direct, costs).total_bytes);
  }
}

TEST(PassRelay, RowsEnterANodeOnce) {
  // Two nodes of eight; a long document of the first is worked on everywhere.
  std::vector<int64_t> lengths = {128 * 1024};
  for (int idx = 0; idx < 14 * 64; ++idx) lengths.push_back(1024);
  const TokenLayout layout = even_layout(lengths, 1, 16);
  PlanningCosts costs = pair_costs(kSizes, 1e12, 1e9, 16);
  costs.links.servers_per_node = 8;
  costs.links.inside_node.bytes_per_s = 8e9;
  RelayScratch scratch;
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    TileDraft draft(layout, 0, direction, costs);
    balance(0.005, &draft);
    RoutedPlan routed = route_tiles(draft);
    const AttentionPlan direct = routed.plan;
    const AttentionPlan& relayed = routed.plan;
    LegClocks legs = play_legs(direct, costs);
    ASSERT_TRUE(relay_rows(layout, costs, &routed, &legs, &scratch));
    ASSERT_NO_THROW(verify_plan(layout, relayed));
    const auto between_nodes_bytes = [&](const AttentionPlan& plan) {
      double bytes = 0;
      for (const ServerPrediction& server : predict(layout, plan, costs).servers) {
        bytes += server.out.sent_between_nodes_bytes;
      }
      return bytes;
    };
    EXPECT_LT(between_nodes_bytes(relayed), 0.5 * between_nodes_bytes(direct));
    EXPECT_LT(predict(layout, relayed, costs).makespan_s,
              predict(layout, direct, costs).makespan_s);
  }
}

}  // namespace
}  // namespace longspan
