#include "planner/launch_groups.h"

#include <algorithm>
#include <utility>

#include "planner/held_rows.h"

namespace longspan {
namespace {

// Rows that reach a rank after the first round, with the number of rounds to wait for.
using LateRows = std::vector<std::pair<Range, int>>;

std::vector<LateRows> late_arrivals(const AttentionPlan& plan) {
  std::vector<LateRows> late(plan.servers.size());
  for (size_t round = 1; round < plan.out.size(); ++round) {
    for (const Transfer& transfer : plan.out[round].transfers) {
      late[static_cast<size_t>(transfer.destination)].emplace_back(transfer.line,
                                                                   static_cast<int>(round) + 1);
    }
  }
  return late;
}

// Of a task that has not all its rows at home.
int rounds_to_wait(const TokenLayout& layout, const AttentionTask& task, const LateRows& late) {
  const Range keys = layout.to_line(task.document, task.keys);
  const Range queries = layout.to_line(task.document, task.queries);
  int rounds = 1;
  for (const auto& [line, round] : late) {
    if (intersect(line, keys).empty() && intersect(line, queries).empty()) continue;
    rounds = std::max(rounds, round);
  }
  return rounds;
}

// Whether tasks [begin, end) of a server take as long as the longest row of tiles among them.
bool is_full(const ServerPlan& server, std::span<const double> task_s, int64_t begin, int64_t end,
             const AttentionCost& cost) {
  int64_t longest_keys = 0;
  for (int64_t idx = begin; idx < end; ++idx) {
    longest_keys = std::max(longest_keys, server.tasks[static_cast<size_t>(idx)].keys.size());
  }
  const double row_s = cost.row_s(longest_keys);
  double tasks_s = 0;
  for (int64_t idx = begin; idx < end && tasks_s < row_s; ++idx) {
    tasks_s += task_s[static_cast<size_t>(idx)];
  }
  return tasks_s >= row_s;
}

void fill_launches(const AttentionCost& cost, std::span<const double> task_s, ServerPlan* server) {
  std::vector<LaunchGroup>& groups = server->groups;
  for (size_t idx = groups.size(); idx-- > 1;) {
    LaunchGroup& group = groups[idx];
    LaunchGroup& before = groups[idx - 1];
    while (before.task_end > before.task_begin &&
           !is_full(*server, task_s, group.task_begin, group.task_end, cost)) {
      --before.task_end;
      --group.task_begin;
    }
    // What is left of the group before may be too little for a launch of its own.
    const bool is_first = idx == 1;
    if (is_first && !is_full(*server, task_s, before.task_begin, before.task_end, cost)) {
      group.task_begin = before.task_begin;
      before.task_end = before.task_begin;
    }
  }
  std::erase_if(groups,
                [](const LaunchGroup& group) { return group.task_begin == group.task_end; });
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

void group_by_arrival(const TokenLayout& layout, AttentionPlan* plan) {
  const auto late = late_arrivals(*plan);
  for (size_t rank = 0; rank < plan->servers.size(); ++rank) {
    ServerPlan& server = plan->servers[rank];
    const LocalInputs local(layout, *plan, static_cast<int>(rank));
    std::vector<std::pair<int, AttentionTask>> waiting;
    waiting.reserve(server.tasks.size());
    for (const AttentionTask& task : server.tasks) {
      waiting.emplace_back(local.hold(task) ? 0 : rounds_to_wait(layout, task, late[rank]), task);
    }
    std::stable_sort(waiting.begin(), waiting.end(),
                     [](const auto& one, const auto& other) { return one.first < other.first; });
    server.groups.clear();
    for (size_t idx = 0; idx < waiting.size(); ++idx) {
      server.tasks[idx] = waiting[idx].second;
      const auto end = static_cast<int64_t>(idx) + 1;
      if (server.groups.empty() || server.groups.back().after_round != waiting[idx].first) {
        server.groups.push_back({waiting[idx].first, end - 1, end});
      }
      server.groups.back().task_end = end;
    }
  }
}

void delay_late_tasks(AttentionPlan* plan) {
  std::vector<int> rounds(plan->servers.size(), 0);  // after which all rows of a server are there
  for (size_t round = 0; round < plan->out.size(); ++round) {
    for (const Transfer& transfer : plan->out[round].transfers) {
      rounds[static_cast<size_t>(transfer.destination)] = static_cast<int>(round) + 1;
    }
  }
  for (size_t rank = 0; rank < plan->servers.size(); ++rank) {
    std::vector<LaunchGroup>& groups = plan->servers[rank].groups;
    if (!groups.empty() && groups.back().after_round > 0) groups.back().after_round = rounds[rank];
  }
}

void fill_launches(const AttentionCost& cost, RoutedPlan* routed) {
  for (size_t rank = 0; rank < routed->plan.servers.size(); ++rank) {
    fill_launches(cost, routed->task_s.of(rank), &routed->plan.servers[rank]);
  }
}

}  // namespace longspan
