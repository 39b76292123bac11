#include "planner/direct_routing.h"

#include <utility>

#include "planner/held_rows.h"

namespace longspan {
namespace {

// Orders the tasks local first and forms the launch groups.
void group_local_first(const TokenLayout& layout, AttentionPlan* plan) {
  for (size_t rank = 0; rank < plan->servers.size(); ++rank) {
    ServerPlan& server = plan->servers[rank];
    const LocalInputs local(layout, *plan, static_cast<int>(rank));
    const auto remote =
        std::stable_partition(server.tasks.begin(), server.tasks.end(),
                              [&](const AttentionTask& task) { return local.hold(task); });
    const int64_t local_tasks = remote - server.tasks.begin();
    const auto tasks = static_cast<int64_t>(server.tasks.size());
    server.groups.clear();
    if (local_tasks > 0) server.groups.push_back({0, 0, local_tasks});
    if (local_tasks < tasks) server.groups.push_back({1, local_tasks, tasks});
  }
}

}  // namespace

LocalInputs::LocalInputs(const TokenLayout& layout, const AttentionPlan& plan, int rank)
    : layout_(layout),
      query_rows_(rows_held_at_start(layout, plan, rank, RowKind::kQuery)),
      key_rows_(rows_held_at_start(layout, plan, rank, RowKind::kKeyValue)) {}

bool LocalInputs::hold(const AttentionTask& task) const {
  return covers(query_rows_, layout_.to_line(task.document, task.queries)) &&
         covers(key_rows_, layout_.to_line(task.document, task.keys));
}

void route_directly(const TokenLayout& layout, AttentionPlan* plan) {
  finish_plan(layout, plan);
  group_local_first(layout, plan);
  Round out;
  Round back;
  for (int rank = 0; rank < static_cast<int>(plan->servers.size()); ++rank) {
    for (const RowKind kind : {RowKind::kQuery, RowKind::kKeyValue}) {
      const auto& rows = buffer_rows(plan->servers[static_cast<size_t>(rank)], kind);
      for (const Range& missing : subtract(rows, rows_held_at_start(layout, *plan, rank, kind))) {
        for (const auto& [home, part] : layout.split_by_home(missing)) {
          out.transfers.push_back({home.rank, rank, kind, part, false});
        }
      }
    }
    for (const RowKind kind : result_kinds(plan->direction)) {
      const auto& rows = buffer_rows(plan->servers[static_cast<size_t>(rank)], kind);
      for (const Range& away : subtract(rows, home_rows(layout, plan->chunk, rank, kind))) {
        for (const auto& [home, part] : layout.split_by_home(away)) {
          back.transfers.push_back({rank, home.rank, kind, part, false});
        }
      }
    }
  }
  plan->out.clear();
  plan->back.clear();
  if (!out.transfers.empty()) plan->out.push_back(std::move(out));
  if (!back.transfers.empty()) plan->back.push_back(std::move(back));
  finish_plan(layout, plan);
  mark_partial_transfers(layout, plan);
}

}  // namespace longspan
