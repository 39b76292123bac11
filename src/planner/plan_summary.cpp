#include "planner/plan_summary.h"

#include "base/check.h"
#include "cost/charged_pairs.h"

namespace longspan {
namespace {

double imbalance_of(const std::vector<int64_t>& loads, const std::vector<double>& speeds) {
  double highest = 0;
  double total_load = 0;
  double total_speed = 0;
  for (size_t server = 0; server < loads.size(); ++server) {
    total_load += static_cast<double>(loads[server]);
    total_speed += speeds[server];
    if (speeds[server] > 0) {
      highest = std::max(highest, static_cast<double>(loads[server]) / speeds[server]);
    }
  }
  return total_load > 0 ? highest * total_speed / total_load : 1;
}

double home_imbalance(const TokenLayout& layout, int chunk, std::vector<double> speeds) {
  std::vector<int64_t> loads(speeds.size(), 0);
  std::vector<double> with_tokens(speeds.size(), 0);
  bool homes_serve = true;
  for (size_t rank = 0; rank < speeds.size(); ++rank) {
    const auto rank_idx = static_cast<int>(rank);
    for (const DocumentPart& part : layout.document_parts(layout.piece(chunk, rank_idx))) {
      loads[rank] += charged_pairs(part.positions, {0, part.positions.end});
    }
    if (total_size(layout.pieces_before(layout.num_chunks(), rank_idx)) == 0) continue;
    with_tokens[rank] = 1;
    homes_serve = homes_serve && speeds[rank] > 0;
  }
  return imbalance_of(loads, homes_serve ? speeds : with_tokens);
}

void count_rows(const Transfer& transfer, RowCounts* counts) {
  const bool is_query = transfer.kind == RowKind::kQuery;
  (is_query ? counts->query : counts->key) += transfer.line.size();
  if (transfer.partial) {
    (is_query ? counts->partial_query : counts->partial_key) += transfer.line.size();
  }
}

}  // namespace

PlanSummary summarize(const TokenLayout& layout, const AttentionPlan& plan,
                      const std::vector<double>& server_speed) {
  const auto ranks = static_cast<size_t>(layout.num_ranks());
  const auto speeds = server_speed.empty() ? std::vector<double>(ranks, 1.0) : server_speed;
  LONGSPAN_CHECK(speeds.size() == ranks, "speeds of ", speeds.size(), " servers for ", ranks,
                 " ranks");
  PlanSummary summary;
  std::vector<int64_t> loads;
  for (const ServerPlan& server : plan.servers) {
    ServerSummary& counts = summary.servers.emplace_back();
    counts.tasks = static_cast<int64_t>(server.tasks.size());
    counts.query_rows = total_size(server.query_rows);
    counts.key_rows = total_size(server.key_rows);
    for (const AttentionTask& task : server.tasks) {
      counts.pairs += visible_pairs(task.queries, task.keys);
      counts.charged_pairs += charged_pairs(task.queries, task.keys);
    }
    loads.push_back(counts.charged_pairs);
  }
  for (const Round& round : plan.out) {
    for (const Transfer& transfer : round.transfers) {
      count_rows(transfer, &summary.servers[static_cast<size_t>(transfer.source)].out_sent);
      count_rows(transfer,
                 &summary.servers[static_cast<size_t>(transfer.destination)].out_received);
    }
  }
  for (const Round& round : plan.back) {
    for (const Transfer& transfer : round.transfers) {
      count_rows(transfer, &summary.servers[static_cast<size_t>(transfer.source)].back_sent);
      count_rows(transfer,
                 &summary.servers[static_cast<size_t>(transfer.destination)].back_received);
    }
  }
  summary.imbalance = imbalance_of(loads, speeds);
  summary.home_imbalance = home_imbalance(layout, plan.chunk, speeds);
  return summary;
}

}  // namespace longspan
