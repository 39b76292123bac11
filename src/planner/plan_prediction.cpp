#include "planner/plan_prediction.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "planner/prediction_parts.h"

namespace longspan {
namespace {

double base_s(const PlanningCosts& costs, size_t rank) {
  return costs.base_s.empty() ? 0 : costs.base_s[rank];
}

// Bytes of a row: [query or key][whole or partial].
using LegBytes = std::array<std::array<double, 2>, 2>;

ExchangeClock play(const std::vector<Round>& leg, const ServerLinks& links, size_t num_ranks,
                   const LegBytes& bytes) {
  ExchangeClock clock(links, static_cast<int>(num_ranks));
  for (const Round& round : leg) {
    const std::vector<Transfer>& transfers = round.transfers;
    for (size_t idx = 0; idx < transfers.size();) {
      const Transfer& first = transfers[idx];
      ExchangeClock::Message message = clock.start_message(first.source, first.destination);
      for (; idx < transfers.size() && transfers[idx].source == first.source &&
             transfers[idx].destination == first.destination;
           ++idx) {
        const Transfer& transfer = transfers[idx];
        const size_t kind = transfer.kind == RowKind::kQuery ? 0 : 1;
        message.add(static_cast<double>(transfer.line.size()) *
                    bytes[kind][transfer.partial ? 1 : 0]);
      }
    }
    clock.end_round();
  }
  return clock;
}

void predict_memory(const TokenLayout& layout, const AttentionPlan& plan, const PassCosts& pass,
                    int rank, ServerPrediction* prediction) {
  const ServerPlan& server = plan.servers[static_cast<size_t>(rank)];
  if (server.tasks.empty()) return;
  const Range piece = layout.piece(plan.chunk, rank);
  const std::span<const Range> own(&piece, 1);
  const int64_t queries = rows_outside(server.query_rows, own);
  // Pieces of a rank ascend with the chunk.
  const int64_t keys =
      plan.chunk == 0 ? rows_outside(server.key_rows, own)
                      : rows_outside(server.key_rows, layout.pieces_before(plan.chunk + 1, rank));
  prediction->memory_bytes = static_cast<double>(queries) * pass.query_row_memory_bytes +
                             static_cast<double>(keys) * pass.key_row_memory_bytes;
  prediction->key_rows = total_size(server.key_rows);
  prediction->key_copies = 1;
}

}  // namespace

double compute_s(const ServerPlan& server, const AttentionCost& cost) {
  std::vector<double> task_s;
  task_s.reserve(server.tasks.size());
  for (const AttentionTask& task : server.tasks) {
    task_s.push_back(cost.task_s(task.queries, task.keys));
  }
  return compute_s(server, cost, task_s);
}

double compute_s(const ServerPlan& server, const AttentionCost& cost,
                 std::span<const double> task_s) {
  double total_s = 0;
  for (const LaunchGroup& group : server.groups) {
    if (group.task_begin == group.task_end) continue;
    double tasks_s = 0;
    int64_t longest_keys = 0;
    for (int64_t idx = group.task_begin; idx < group.task_end; ++idx) {
      const auto task = static_cast<size_t>(idx);
      tasks_s += task_s[task];
      longest_keys = std::max(longest_keys, server.tasks[task].keys.size());
    }
    total_s += cost.launch_s() + std::max(tasks_s, cost.row_s(longest_keys));
  }
  return total_s;
}

int64_t rows_outside(const std::vector<Range>& rows, std::span<const Range> home) {
  int64_t outside = 0;
  auto at = home.begin();
  for (const Range& range : rows) {
    outside += range.size();
    while (at != home.end() && at->end <= range.begin) ++at;
    for (auto overlap = at; overlap != home.end() && overlap->begin < range.end; ++overlap) {
      outside -= intersect(range, *overlap).size();
    }
  }
  return outside;
}

double LegClocks::late_s(const ExchangeWindow& window) const {
  return std::max(0.0, enter.seconds() - window.enter_s) +
         std::max(0.0, exit.seconds() - window.exit_s);
}

LegClocks play_legs(const AttentionPlan& plan, const PlanningCosts& costs) {
  const RowBytes& bytes = costs.pass(plan.direction).bytes;
  const size_t ranks = plan.servers.size();
  return {play(plan.out, costs.links, ranks,
               {{{bytes.query_out, bytes.query_out}, {bytes.key_out, bytes.key_out}}}),
          play(plan.back, costs.links, ranks,
               {{{bytes.query_back, bytes.query_back_partial},
                 {bytes.key_back, bytes.key_back_partial}}})};
}

void conclude(const PlanningCosts& costs, Direction direction, const ExchangeClock& enter,
              const ExchangeClock& exit, PlanPrediction* prediction) {
  double total_compute_s = 0;
  for (size_t rank = 0; rank < prediction->servers.size(); ++rank) {
    ServerPrediction& server = prediction->servers[rank];
    server.out = enter.traffic(static_cast<int>(rank));
    server.back = exit.traffic(static_cast<int>(rank));
    prediction->total_bytes += server.out.sent_bytes + server.back.sent_bytes;
    total_compute_s += server.compute_s;
    const double speed = costs.speed[rank];
    LONGSPAN_CHECK(speed > 0 || server.compute_s == 0, "rank ", rank,
                   " has tasks, but is no attention server");
    server.busy_s = base_s(costs, rank) + (speed > 0 ? server.compute_s / speed : 0);
    if (speed > 0) prediction->compute_s = std::max(prediction->compute_s, server.busy_s);
  }
  const double level_s = water_level_s(total_compute_s, costs.speed, costs.base_s);
  prediction->max_over_mean = level_s > 0 ? prediction->compute_s / level_s : 1;
  prediction->enter_s = enter.seconds();
  prediction->exit_s = exit.seconds();
  const ExchangeWindow& window = costs.pass(direction).window;
  const double late_enter_s = std::max(0.0, enter.seconds() - window.enter_s);
  const double late_exit_s = std::max(0.0, exit.seconds() - window.exit_s);
  prediction->makespan_s = prediction->compute_s + late_enter_s + late_exit_s;
  if (prediction->makespan_s <= 0) return;
  prediction->binding = BindingConstraint::kCompute;
  if (late_enter_s + late_exit_s > prediction->compute_s - level_s) {
    const ExchangeClock& later = late_enter_s >= late_exit_s ? enter : exit;
    prediction->binding =
        later.is_bound_by_sending() ? BindingConstraint::kSend : BindingConstraint::kReceive;
  }
}

PlanPrediction predict(const TokenLayout& layout, const AttentionPlan& plan,
                       const PlanningCosts& costs) {
  check_costs(costs, layout.num_ranks());
  const PassCosts& pass = costs.pass(plan.direction);
  PlanPrediction prediction;
  prediction.servers.resize(plan.servers.size());
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    const auto idx = static_cast<size_t>(rank);
    prediction.servers[idx].compute_s = compute_s(plan.servers[idx], pass.attention);
    predict_memory(layout, plan, pass, rank, &prediction.servers[idx]);
  }
  const LegClocks legs = play_legs(plan, costs);
  conclude(costs, plan.direction, legs.enter, legs.exit, &prediction);
  return prediction;
}

PlanPrediction predict(const TokenLayout& layout, const RoutedPlan& routed,
                       const PlanningCosts& costs, const LegClocks& legs) {
  const AttentionPlan& plan = routed.plan;
  const PassCosts& pass = costs.pass(plan.direction);
  PlanPrediction prediction;
  prediction.servers.resize(plan.servers.size());
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    const auto idx = static_cast<size_t>(rank);
    prediction.servers[idx].compute_s =
        compute_s(plan.servers[idx], pass.attention, routed.task_s.of(idx));
    predict_memory(layout, plan, pass, rank, &prediction.servers[idx]);
  }
  conclude(costs, plan.direction, legs.enter, legs.exit, &prediction);
  return prediction;
}

}  // namespace longspan
