// What the cost model says a plan will take, and how far that is from the best possible.
//
//   PlanPrediction prediction = predict(layout, plan, costs);
//   prediction.makespan_s;             // busiest server, plus exchange that nothing hides
//   prediction.servers[3].compute_s;
//   lower_bound_s(layout, chunk, direction, costs)     // no plan of this chunk is faster
//
// Makespan = max over servers of (base time + compute over speed)
//          + what the out leg takes beyond its window + what the back leg takes beyond its window.
// A leg takes the sum over its rounds of the slowest rank and link class (exchange_clock.h): the
// latency of a round, message overheads, bytes over bandwidth.
// Pure; any thread; the same bits on every machine.
#pragma once

#include <vector>

#include "planner/planning_costs.h"

namespace longspan {

// Bytes and messages of one rank on one leg, all rounds; per device of a server.
struct LegTraffic {
  double sent_bytes = 0;
  double received_bytes = 0;
  double sent_between_nodes_bytes = 0;  // of sent_bytes
  double received_between_nodes_bytes = 0;
  int64_t sent_messages = 0;
  bool operator==(const LegTraffic&) const = default;
};

struct ServerPrediction {
  double compute_s = 0;  // launches and tasks, at speed 1
  double busy_s = 0;     // base time + compute over speed; base time alone if it runs no tasks
  LegTraffic out;
  LegTraffic back;
  double memory_bytes = 0;  // rows of other homes in its buffers
  int64_t key_rows = 0;     // of its buffers
  double key_copies = 0;    // copies of the busiest key row that it stores: 1 by construction
  bool operator==(const ServerPrediction&) const = default;
};

// What keeps the makespan above the level of equally busy servers: the busiest one, or the rank
// whose exchange is late by more than that. Nothing if there is no work.
enum class BindingConstraint { kCompute, kSend, kReceive, kNothing };

struct PlanPrediction {
  std::vector<ServerPrediction> servers;
  double compute_s = 0;  // of the busiest server, base time and speed included
  double enter_s = 0;
  double exit_s = 0;
  double makespan_s = 0;
  // Maximum over mean of busy time: the mean is the level that equally busy servers would reach.
  double max_over_mean = 1;
  double total_bytes = 0;  // both legs
  BindingConstraint binding = BindingConstraint::kNothing;
};

PlanPrediction predict(const TokenLayout& layout, const AttentionPlan& plan,
                       const PlanningCosts& costs);

// The level tau with sum of speed_j max(0, tau - base_j) = work: the makespan if work could be
// spread without loss.
double water_level_s(double work_s, const std::vector<double>& speed,
                     const std::vector<double>& base_s);

// Least compute plus least late exchange, each a bound of its own:
//   compute   the water level of the chunk's least work (as few tiles as any cut can have, each at
//             the best rate that a task of its document can reach; tasks of few queries are no way
//             out, since others must do the rest of the tile; one launch on each server), a single
//             tile, the latest base time
//   exchange  what has to pass a rank beyond the windows: the queries and needed keys of a rank
//             that is no server; on a server, the foreign keys that its first document sees, or
//             all its queries that see them
// Holds for every plan that declares no key rows resident.
double lower_bound_s(const TokenLayout& layout, int chunk, Direction direction,
                     const PlanningCosts& costs);

}  // namespace longspan
