// Everything a planner weighs: what tasks cost, what rows weigh, how ranks are linked.
//
//   PlanningCosts costs = uniform_costs(shape, profile, server_links(cluster, 1), num_ranks);
//   costs.forward.window = {.enter_s = 0.004, .exit_s = 0.004};   // hidden under other work
//   predict(layout, plan, costs).makespan_s                       // plan_prediction.h
//
// Without a profile at hand, alike_costs() charges pairs at one rate and links nothing. Values;
// immutable while a planner runs; any thread.
#pragma once

#include <vector>

#include "cost/attention_cost.h"
#include "cost/cluster_spec.h"
#include "cost/device_profile.h"
#include "planner/attention_plan.h"

namespace longspan {

// Exchange time that other work of the ranks hides (ping-pong: the other chunk's linear layers).
struct ExchangeWindow {
  double enter_s = 0;
  double exit_s = 0;
};

// Of one direction.
struct PassCosts {
  AttentionCost attention;
  RowBytes bytes;
  ExchangeWindow window;
  // Bytes of a row in a server's buffers, inputs and results.
  double query_row_memory_bytes = 0;
  double key_row_memory_bytes = 0;
};

struct PlanningCosts {
  PassCosts forward;
  PassCosts backward;
  ServerLinks links;
  // Of each rank as a server; 0: it runs no tasks.
  std::vector<double> speed;
  // Time that each rank is busy before it can start tasks; empty: none.
  std::vector<double> base_s;
  // Bytes that rows of other homes may take on one server; 0: no cap.
  double memory_cap_bytes = 0;

  const PassCosts& pass(Direction direction) const {
    return direction == Direction::kForward ? forward : backward;
  }
};

// Servers of speed 1 without windows, base times and cap.
PlanningCosts uniform_costs(const AttentionSizes& shape, const DeviceProfile& profile,
                            const ServerLinks& links, int num_ranks);

// One rate for all shapes, no overheads, links of one class.
PlanningCosts pair_costs(const AttentionSizes& shape, double flops_per_s, double link_bytes_per_s,
                         int num_ranks);

// Pairs cost the same everywhere and links nothing: plans that are balanced and no more.
PlanningCosts alike_costs(int num_ranks);

// InternalError unless there is one speed (and base time) for each rank, none negative, at least
// one speed positive.
void check_costs(const PlanningCosts& costs, int num_ranks);

}  // namespace longspan
