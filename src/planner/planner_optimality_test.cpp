// The planner against the exact optimum of thousands of tiny chunks.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "planner/attention_planner.h"
#include "planner/exhaustive_search.h"

namespace longspan {
namespace {

constexpr AttentionSizes kShape{
    .query_heads = 4, .key_heads = 1, .key_width = 64, .value_width = 64};
constexpr double kMostPlacements = 20000;

struct Instance {
  TokenLayout layout;
  PlanningCosts costs;
};

// Few documents of few blocks on 2 or 3 ranks. The exchange of a block takes from next to nothing
// to several times its computation.
Instance random_instance(RandomStream& random) {
  std::vector<int64_t> lengths(static_cast<size_t>(random.between(1, 4)));
  for (int64_t& length : lengths) length = kBlockTokens * random.between(1, 4);
  const int ranks = static_cast<int>(random.between(2, 3));
  TokenLayout layout = TokenLayout::make(
      lengths, {.chunks = 1, .shares = std::vector<double>(static_cast<size_t>(ranks), 1.0)});
  PlanningCosts costs = pair_costs(kShape, 1e9, 1, ranks);
  const Range block{0, kBlockTokens};
  const double tile_s = costs.forward.attention.task_s(block, block);
  const double block_bytes = kBlockTokens * costs.forward.bytes.query_out;
  const double exchange_over_tile = std::pow(2.0, 6 * random.uniform() - 5);
  costs.links.between_nodes.bytes_per_s = block_bytes / (exchange_over_tile * tile_s);
  costs.links.inside_node = costs.links.between_nodes;
  if (random.below(3) == 0) {
    costs.speed[random.below(static_cast<uint64_t>(ranks))] = random.below(2) == 0 ? 2 : 0;
  }
  if (random.below(3) == 0) costs.base_s.assign(static_cast<size_t>(ranks), 0);
  for (double& base : costs.base_s) base = 2 * tile_s * random.uniform();
  if (random.below(2) == 0) {
    const ExchangeWindow window{3 * tile_s * random.uniform(), 3 * tile_s * random.uniform()};
    costs.forward.window = costs.backward.window = window;
  }
  return {std::move(layout), std::move(costs)};
}

TEST(PlannerOptimality, IsWithinATenthOrOneTileOfTheOptimum) {
  int instances = 0;
  int failures = 0;
  double sum = 0;
  double worst = 0;
  for (uint64_t seed = 0; instances < 3000; ++seed) {
    RandomStream random(seed, "planner optimality");
    const Instance instance = random_instance(random);
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      ExhaustiveSearch search(instance.layout, direction, instance.costs);
      const double placements = std::pow(static_cast<double>(search.num_servers()),
                                         static_cast<double>(search.num_tiles()));
      if (placements > kMostPlacements) continue;
      ++instances;
      const double best_s = search.best_makespan_s();
      const double planned_s =
          plan_attention(instance.layout, 0, direction, instance.costs).prediction.makespan_s;
      EXPECT_GE(planned_s, best_s * (1 - 1e-9)) << "seed " << seed << ": better than the optimum";
      sum += planned_s / best_s;
      worst = std::max(worst, planned_s / best_s);
      if (planned_s <= std::max(1.1 * best_s, best_s + search.tile_s()) * (1 + 1e-9)) continue;
      if (++failures <= 10) {
        ADD_FAILURE() << "seed " << seed
                      << (direction == Direction::kForward ? " forward" : " backward") << ": "
                      << planned_s << " s, the optimum is " << best_s << " s, a tile takes "
                      << search.tile_s() << " s";
      }
    }
  }
  EXPECT_EQ(failures, 0) << "of " << instances;
  RecordProperty("mean_ratio", std::to_string(sum / instances));
  RecordProperty("worst_ratio", std::to_string(worst));
  std::cout << instances << " instances: makespan over the optimum " << sum / instances
            << " in the mean, " << worst << " at most\n";
}

}  // namespace
}  // namespace longspan
