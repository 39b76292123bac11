#include "planner/planning_costs.h"

#include <algorithm>

#include "base/check.h"

namespace longspan {
namespace {

// Rows of other homes in the buffers of a server: forward Q, O, LSE and K, V; backward Q, dO, LSE,
// delta, dQ and K, V, dK, dV.
PassCosts pass_costs(const AttentionSizes& shape, const PassRates& rates, Direction direction) {
  const RowBytes bytes = row_bytes(shape, direction);
  return {.attention = AttentionCost(shape, rates, direction),
          .bytes = bytes,
          .query_row_memory_bytes = bytes.query_out + bytes.query_back_partial,
          .key_row_memory_bytes = bytes.key_out + bytes.key_back_partial};
}

PassRates one_rate(double flops_per_s) {
  const RateGrid grid({1}, {1}, {flops_per_s});
  return {.causal = grid, .full = grid};
}

PlanningCosts assemble(const AttentionSizes& shape, const PassRates& forward,
                       const PassRates& backward, const ServerLinks& links, int num_ranks) {
  return {.forward = pass_costs(shape, forward, Direction::kForward),
          .backward = pass_costs(shape, backward, Direction::kBackward),
          .links = links,
          .speed = std::vector<double>(static_cast<size_t>(num_ranks), 1.0)};
}

}  // namespace

PlanningCosts uniform_costs(const AttentionSizes& shape, const DeviceProfile& profile,
                            const ServerLinks& links, int num_ranks) {
  return assemble(shape, profile.forward, profile.backward, links, num_ranks);
}

PlanningCosts pair_costs(const AttentionSizes& shape, double flops_per_s, double link_bytes_per_s,
                         int num_ranks) {
  const LinkClass link{.bytes_per_s = link_bytes_per_s};
  const PassRates rates = one_rate(flops_per_s);
  return assemble(shape, rates, rates, {1, link, link}, num_ranks);
}

PlanningCosts alike_costs(int num_ranks) {
  constexpr double kNoLimit = 1e18;
  return pair_costs({}, 1e9, kNoLimit, num_ranks);
}

void check_costs(const PlanningCosts& costs, int num_ranks) {
  const auto ranks = static_cast<size_t>(num_ranks);
  LONGSPAN_CHECK(costs.speed.size() == ranks, "speeds of ", costs.speed.size(), " servers for ",
                 num_ranks, " ranks");
  LONGSPAN_CHECK(costs.base_s.empty() || costs.base_s.size() == ranks, "base times of ",
                 costs.base_s.size(), " servers for ", num_ranks, " ranks");
  for (const double speed : costs.speed) LONGSPAN_CHECK(speed >= 0, "server speed ", speed);
  for (const double base : costs.base_s) LONGSPAN_CHECK(base >= 0, "base time ", base);
  LONGSPAN_CHECK(*std::max_element(costs.speed.begin(), costs.speed.end()) > 0,
                 "no rank is an attention server");
}

}  // namespace longspan
