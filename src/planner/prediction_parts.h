// The parts of a prediction that plans and baselines share (plan_prediction.h, baselines.h).
//
//   server.compute_s = compute_s(plan.servers[rank], costs.forward.attention);
//   conclude(costs, Direction::kForward, enter, exit, &prediction);
//
// Pure functions; any thread.
#pragma once

#include "planner/exchange_clock.h"
#include "planner/plan_prediction.h"
#include "planner/routed_plan.h"

namespace longspan {

// Launch groups one after the other: each its overhead, and its tasks together, but no less than
// the longest row of tiles among them. Groups without tasks cost nothing.
double compute_s(const ServerPlan& server, const AttentionCost& cost);
// With the seconds of each task at hand.
double compute_s(const ServerPlan& server, const AttentionCost& cost,
                 std::span<const double> task_s);

// Rows of the normalized list outside of `home` (normalized as well).
int64_t rows_outside(const std::vector<Range>& rows, std::span<const Range> home);

// The exchange of a plan's legs.
struct LegClocks {
  ExchangeClock enter;
  ExchangeClock exit;

  // What the legs take beyond their windows.
  double late_s(const ExchangeWindow& window) const;
};

LegClocks play_legs(const AttentionPlan& plan, const PlanningCosts& costs);

// predict() of plan_prediction.h, with the legs played.
PlanPrediction predict(const TokenLayout& layout, const RoutedPlan& routed,
                       const PlanningCosts& costs, const LegClocks& legs);

// Fills everything that follows from the servers' compute_s and the two legs.
void conclude(const PlanningCosts& costs, Direction direction, const ExchangeClock& enter,
              const ExchangeClock& exit, PlanPrediction* prediction);

}  // namespace longspan
