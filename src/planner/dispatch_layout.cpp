#include "planner/dispatch_layout.h"

namespace longspan {
namespace {

ServerRows server_rows(const TokenLayout& layout, const ServerPlan& server) {
  const RowMap queries(server.query_rows);
  const RowMap keys(server.key_rows);
  ServerRows rows{.query_rows = queries.num_rows(), .key_rows = keys.num_rows()};
  rows.tasks.reserve(server.tasks.size());
  for (const AttentionTask& task : server.tasks) {
    rows.tasks.push_back({queries.rows(layout.to_line(task.document, task.queries)).begin,
                          keys.rows(layout.to_line(task.document, task.keys)).begin});
  }
  return rows;
}

std::vector<DispatchMessage> messages(const Round& round) {
  std::vector<DispatchMessage> list;
  for (size_t idx = 0; idx < round.transfers.size(); ++idx) {
    const Transfer& transfer = round.transfers[idx];
    if (list.empty() || list.back().source != transfer.source ||
        list.back().destination != transfer.destination) {
      list.push_back({transfer.source, transfer.destination, idx, idx, 0, 0});
    }
    DispatchMessage& message = list.back();
    message.transfer_end = idx + 1;
    (transfer.kind == RowKind::kQuery ? message.query_rows : message.key_rows) +=
        transfer.line.size();
  }
  return list;
}

}  // namespace

DispatchLayout dispatch_layout(const TokenLayout& layout, const AttentionPlan& plan) {
  DispatchLayout dispatch;
  dispatch.servers.reserve(plan.servers.size());
  for (const ServerPlan& server : plan.servers) {
    dispatch.servers.push_back(server_rows(layout, server));
  }
  for (const Round& round : plan.out) dispatch.out.push_back(messages(round));
  for (const Round& round : plan.back) dispatch.back.push_back(messages(round));
  return dispatch;
}

}  // namespace longspan
