// Random costs for the planner's tests: ragged rate grids, overheads, two link classes, windows.
//
//   const PlanningCosts costs = random_costs(random, layout.num_ranks());
//
// All ranks are servers, of unequal speeds and base times.
#pragma once

#include "base/random.h"
#include "planner/planning_costs.h"

namespace longspan {

inline RateGrid random_grid(RandomStream& random) {
  const auto axis = [&] {
    std::vector<int64_t> points = {random.between(1, 200)};
    while (random.below(4) != 0) points.push_back(points.back() + random.between(1, 2000));
    return points;
  };
  const std::vector<int64_t> queries = axis();
  const std::vector<int64_t> keys = axis();
  std::vector<double> rates(queries.size() * keys.size());
  for (double& rate : rates) rate = 1e12 * (1 + 300 * random.uniform());
  return RateGrid(queries, keys, rates);
}

inline PlanningCosts random_costs(RandomStream& random, int num_ranks) {
  const auto rates = [&]() -> PassRates {
    return {.causal = random_grid(random),
            .full = random_grid(random),
            .task_overhead_s = 1e-6 * random.uniform(),
            .launch_overhead_s = 1e-5 * random.uniform(),
            .row_flops_per_s = random.below(2) == 0 ? 0 : 1e12 * (1 + random.uniform())};
  };
  const auto link = [&](double bytes_per_s) -> LinkClass {
    return {bytes_per_s * (0.1 + random.uniform()), 1e-5 * random.uniform(),
            1e-6 * random.uniform()};
  };
  const AttentionSizes shape{.query_heads = 8, .key_heads = 2, .key_width = 64, .value_width = 32};
  const DeviceProfile profile{.forward = rates(), .backward = rates()};
  const ServerLinks links{static_cast<int>(random.between(1, num_ranks)), link(400e9), link(40e9)};
  PlanningCosts costs = uniform_costs(shape, profile, links, num_ranks);
  for (PassCosts* pass : {&costs.forward, &costs.backward}) {
    if (random.below(2) == 0) pass->window = {2e-5 * random.uniform(), 2e-5 * random.uniform()};
  }
  for (double& speed : costs.speed) speed = 0.5 + random.uniform();
  if (random.below(2) == 0) {
    for (int rank = 0; rank < num_ranks; ++rank) costs.base_s.push_back(1e-4 * random.uniform());
  }
  return costs;
}

}  // namespace longspan
