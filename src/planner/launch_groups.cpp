#include "planner/launch_groups.h"

#include <algorithm>
#include <utility>

#include "planner/held_rows.h"

namespace longspan {
namespace {

// For each rank, the rows that arrive after the first round, with the number of rounds to wait for.
std::vector<std::vector<std::pair<Range, int>>> late_arrivals(const AttentionPlan& plan) {
  std::vector<std::vector<std::pair<Range, int>>> late(plan.servers.size());
  for (size_t round = 1; round < plan.out.size(); ++round) {
    for (const Transfer& transfer : plan.out[round].transfers) {
      late[static_cast<size_t>(transfer.destination)].emplace_back(transfer.line,
                                                                   static_cast<int>(round) + 1);
    }
  }
  return late;
}

// Whether tasks [begin, end) of a server take as long as the longest row of tiles among them.
bool is_full(const ServerPlan& server, int64_t begin, int64_t end, const AttentionCost& cost) {
  int64_t longest_keys = 0;
  for (int64_t idx = begin; idx < end; ++idx) {
    longest_keys = std::max(longest_keys, server.tasks[static_cast<size_t>(idx)].keys.size());
  }
  const double row_s = cost.row_s(longest_keys);
  double tasks_s = 0;
  for (int64_t idx = begin; idx < end && tasks_s < row_s; ++idx) {
    const AttentionTask& task = server.tasks[static_cast<size_t>(idx)];
    tasks_s += cost.task_s(task.queries, task.keys);
  }
  return tasks_s >= row_s;
}

void fill_launches(const AttentionCost& cost, ServerPlan* server) {
  std::vector<LaunchGroup>& groups = server->groups;
  for (size_t idx = groups.size(); idx-- > 1;) {
    LaunchGroup& group = groups[idx];
    LaunchGroup& before = groups[idx - 1];
    while (before.task_end > before.task_begin &&
           !is_full(*server, group.task_begin, group.task_end, cost)) {
      --before.task_end;
      --group.task_begin;
    }
    // What is left of the group before may be too little for a launch of its own.
    const bool is_first = idx == 1;
    if (is_first && !is_full(*server, before.task_begin, before.task_end, cost)) {
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
    const auto rounds_to_wait = [&](const AttentionTask& task) {
      if (local.hold(task)) return 0;
      int rounds = 1;
      const Range keys = layout.to_line(task.document, task.keys);
      const Range queries = layout.to_line(task.document, task.queries);
      for (const auto& [line, round] : late[rank]) {
        if (intersect(line, keys).empty() && intersect(line, queries).empty()) continue;
        rounds = std::max(rounds, round);
      }
      return rounds;
    };
    std::vector<std::pair<int, AttentionTask>> waiting;
    waiting.reserve(server.tasks.size());
    for (const AttentionTask& task : server.tasks) waiting.emplace_back(rounds_to_wait(task), task);
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

void delay_late_tasks(const TokenLayout& layout, AttentionPlan* plan) {
  const auto late = late_arrivals(*plan);
  for (size_t rank = 0; rank < plan->servers.size(); ++rank) {
    ServerPlan& server = plan->servers[rank];
    if (late[rank].empty() || server.groups.empty()) continue;
    LaunchGroup& last = server.groups.back();
    if (last.after_round != 1) continue;
    const auto arrives_late = [&](const AttentionTask& task) {
      const Range keys = layout.to_line(task.document, task.keys);
      const Range queries = layout.to_line(task.document, task.queries);
      return std::any_of(late[rank].begin(), late[rank].end(), [&](const auto& arrival) {
        return !intersect(arrival.first, keys).empty() ||
               !intersect(arrival.first, queries).empty();
      });
    };
    const auto begin = server.tasks.begin() + static_cast<std::ptrdiff_t>(last.task_begin);
    const auto first_late = std::stable_partition(
        begin, server.tasks.end(), [&](const AttentionTask& task) { return !arrives_late(task); });
    const int64_t split = first_late - server.tasks.begin();
    if (split == last.task_end) continue;
    const LaunchGroup delayed{2, split, last.task_end};
    if (split == last.task_begin) {
      last = delayed;
    } else {
      last.task_end = split;
      server.groups.push_back(delayed);
    }
  }
}

void fill_launches(const AttentionCost& cost, AttentionPlan* plan) {
  for (ServerPlan& server : plan->servers) fill_launches(cost, &server);
}

}  // namespace longspan
