#include "planner/direct_routing.h"

#include <utility>

#include "planner/held_rows.h"
#include "planner/launch_groups.h"

namespace longspan {

void route_directly(const TokenLayout& layout, AttentionPlan* plan) {
  finish_plan(layout, plan);
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
  group_by_arrival(layout, plan);
  finish_plan(layout, plan);
  mark_partial_transfers(layout, plan);
}

}  // namespace longspan
