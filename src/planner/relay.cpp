#include "planner/relay.h"

#include <algorithm>
#include <utility>

#include "planner/launch_groups.h"
#include "planner/relay_ways.h"
#include "planner/wire_order.h"

namespace longspan {
namespace {

// What the busiest rank's sending to other nodes counts, beside lateness.
double peak_s(const LegClocks& legs, const ServerLinks& links, int num_ranks) {
  if (links.between_nodes.bytes_per_s <= 0) return 0;
  double most_bytes = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    for (const ExchangeClock* leg : {&legs.enter, &legs.exit}) {
      const LegTraffic& traffic = leg->traffic(rank);
      most_bytes = std::max(most_bytes, traffic.sent_between_nodes_bytes);
    }
  }
  return RelayWays::kPeakSeconds * most_bytes / links.between_nodes.bytes_per_s;
}

}  // namespace

bool relay_rows(const TokenLayout& layout, const PlanningCosts& costs, RoutedPlan* routed,
                LegClocks* clocks, RelayScratch* scratch) {
  AttentionPlan* plan = &routed->plan;
  const int ranks = layout.num_ranks();
  if (plan->out.size() != 1) return false;
  const ExchangeWindow& window = costs.pass(plan->direction).window;
  const double before_s = clocks->late_s(window);
  RelayWays ways(layout, costs, plan->direction, plan->out.front().transfers, scratch);
  if (!ways.has_hot_senders() && before_s <= 0) return false;
  if (!ways.find()) return false;
  std::vector<Round> out = ways.rounds();
  std::vector<Round> back = mirrored(ranks, plan->direction, out);
  mark_more_partial_transfers(routed->other_parts, &back);
  // That is said of results only.
  for (Round& round : out) {
    for (Transfer& transfer : round.transfers) transfer.partial = false;
  }
  plan->out.swap(out);
  plan->back.swap(back);
  LegClocks now = play_legs(*plan, costs);
  // A much lower peak is worth a little lateness.
  if (now.late_s(window) + peak_s(now, costs.links, ranks) >
      before_s + peak_s(*clocks, costs.links, ranks)) {
    plan->out.swap(out);
    plan->back.swap(back);
    return false;
  }
  *clocks = std::move(now);
  delay_late_tasks(plan);
  return true;
}

}  // namespace longspan
