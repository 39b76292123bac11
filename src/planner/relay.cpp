#include "planner/relay.h"

#include <utility>

#include "planner/launch_groups.h"
#include "planner/relay_ways.h"
#include "planner/wire_order.h"

namespace longspan {
bool relay_rows(const TokenLayout& layout, const PlanningCosts& costs, RoutedPlan* routed,
                LegClocks* clocks) {
  AttentionPlan* plan = &routed->plan;
  if (plan->out.size() != 1) return false;
  const ExchangeWindow& window = costs.pass(plan->direction).window;
  const double before_s = clocks->late_s(window);
  RelayWays ways(layout, costs, plan->direction, plan->out.front().transfers);
  if (!ways.has_hot_senders() && before_s <= 0) return false;
  if (!ways.find()) return false;
  std::vector<Round> out = ways.rounds();
  std::vector<Round> back = mirrored(layout.num_ranks(), plan->direction, out);
  plan->out.swap(out);
  plan->back.swap(back);
  mark_partial_transfers(routed->other_parts, plan);
  LegClocks now = play_legs(*plan, costs);
  if (now.late_s(window) > before_s) {
    plan->out.swap(out);
    plan->back.swap(back);
    return false;
  }
  *clocks = std::move(now);
  delay_late_tasks(plan);
  return true;
}

}  // namespace longspan
