#include "plan_report/plan_figures.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"

namespace longspan {
namespace {

using Field = std::pair<const char*, double PlanFigures::*>;

// In the order of the JSON.
constexpr Field kFields[] = {
    {"max_over_mean", &PlanFigures::max_over_mean},
    {"makespan_s", &PlanFigures::makespan_s},
    {"lower_bound_s", &PlanFigures::lower_bound_s},
    {"send_bytes_mean", &PlanFigures::send_bytes_mean},
    {"send_bytes_max", &PlanFigures::send_bytes_max},
    {"recv_bytes_max", &PlanFigures::recv_bytes_max},
    {"kv_copies_max", &PlanFigures::kv_copies_max},
    {"aligned_share", &PlanFigures::aligned_share},
    {"plan_ms", &PlanFigures::plan_ms},
    {"recv_bytes_mean", &PlanFigures::recv_bytes_mean},
    {"send_between_nodes_bytes_max", &PlanFigures::send_between_nodes_bytes_max},
    {"back_send_bytes_mean", &PlanFigures::back_send_bytes_mean},
    {"back_send_bytes_max", &PlanFigures::back_send_bytes_max},
    {"back_recv_bytes_max", &PlanFigures::back_recv_bytes_max},
    {"memory_bytes_max", &PlanFigures::memory_bytes_max},
    {"kv_rows_max", &PlanFigures::kv_rows_max},
    {"compute_s", &PlanFigures::compute_s},
    {"enter_s", &PlanFigures::enter_s},
    {"exit_s", &PlanFigures::exit_s},
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

double aligned_share(const TokenLayout& layout, const AttentionPlan& plan) {
  int64_t cuts = 0;
  int64_t aligned = 0;
  const auto count = [&](int32_t document, int64_t position) {
    if (position == 0 || position == layout.document_tokens(document)) return;
    const int64_t line = layout.document(document).begin + position;
    if (layout.piece(layout.home(line).chunk, layout.home(line).rank).begin == line) return;
    ++cuts;
    aligned += position % kBlockTokens == 0 ? 1 : 0;
  };
  for (const ServerPlan& server : plan.servers) {
    for (const AttentionTask& task : server.tasks) {
      count(task.document, task.queries.begin);
      count(task.document, task.queries.end);
      count(task.document, task.keys.begin);
      if (task.keys.end != task.queries.end) count(task.document, task.keys.end);
    }
  }
  return cuts == 0 ? 1 : static_cast<double>(aligned) / static_cast<double>(cuts);
}

PlanFigures figures_of(const TokenLayout& layout, const AttentionPlan& plan,
                       const PlanPrediction& prediction, double bound_s, double plan_s) {
  PlanFigures figures{.max_over_mean = prediction.max_over_mean,
                      .makespan_s = prediction.makespan_s,
                      .lower_bound_s = bound_s,
                      .aligned_share = aligned_share(layout, plan),
                      .plan_ms = plan_s * 1e3,
                      .compute_s = prediction.compute_s,
                      .enter_s = prediction.enter_s,
                      .exit_s = prediction.exit_s};
  const auto servers = static_cast<double>(prediction.servers.size());
  const auto raise = [](double& most, double value) { most = std::max(most, value); };
  for (const ServerPrediction& server : prediction.servers) {
    figures.send_bytes_mean += server.out.sent_bytes / servers;
    figures.recv_bytes_mean += server.out.received_bytes / servers;
    figures.back_send_bytes_mean += server.back.sent_bytes / servers;
    raise(figures.send_bytes_max, server.out.sent_bytes);
    raise(figures.send_between_nodes_bytes_max, server.out.sent_between_nodes_bytes);
    raise(figures.recv_bytes_max, server.out.received_bytes);
    raise(figures.back_send_bytes_max, server.back.sent_bytes);
    raise(figures.back_recv_bytes_max, server.back.received_bytes);
    raise(figures.kv_copies_max, server.key_copies);
    raise(figures.kv_rows_max, static_cast<double>(server.key_rows));
    raise(figures.memory_bytes_max, server.memory_bytes);
  }
  return figures;
}

PlanFigures mean_figures(const std::vector<PlanFigures>& figures) {
  LONGSPAN_CHECK(!figures.empty(), "a mean of no plans");
  PlanFigures mean;
  for (const auto& [name, field] : kFields) {
    for (const PlanFigures& one : figures) {
      mean.*field += one.*field / static_cast<double>(figures.size());
    }
  }
  std::vector<double> plan_ms;
  for (const PlanFigures& one : figures) plan_ms.push_back(one.plan_ms);
  mean.plan_ms = median(std::move(plan_ms));
  return mean;
}

Json to_json(const PlanFigures& figures) {
  Json json;
  for (const auto& [name, field] : kFields) json[name] = figures.*field;
  return json;
}

}  // namespace longspan
