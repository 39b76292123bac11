#include "planner/held_rows.h"

#include <algorithm>
#include <utility>

namespace longspan {
namespace {

// Rows that two or more servers have in their buffers: a sweep over the ends of all ranges.
std::vector<Range> rows_of_several_servers(const AttentionPlan& plan, RowKind kind) {
  std::vector<std::pair<int64_t, int>> steps;  // (line position, change of the number of servers)
  for (const ServerPlan& server : plan.servers) {
    for (const Range& rows : buffer_rows(server, kind)) {
      steps.emplace_back(rows.begin, 1);
      steps.emplace_back(rows.end, -1);
    }
  }
  std::sort(steps.begin(), steps.end());
  std::vector<Range> several;
  int servers = 0;
  for (size_t idx = 0; idx + 1 < steps.size(); ++idx) {
    servers += steps[idx].second;
    if (servers >= 2) several.push_back({steps[idx].first, steps[idx + 1].first});
  }
  return several;
}

}  // namespace

std::vector<Range> home_rows(const TokenLayout& layout, int chunk, int rank, RowKind kind) {
  if (kind == RowKind::kQuery) return normalize({layout.piece(chunk, rank)});
  return normalize(layout.pieces_before(chunk + 1, rank));
}

std::vector<Range> rows_held_at_start(const TokenLayout& layout, const AttentionPlan& plan,
                                      int rank, RowKind kind) {
  std::vector<Range> rows = home_rows(layout, plan.chunk, rank, kind);
  if (kind == RowKind::kKeyValue) {
    const auto& resident = plan.servers[static_cast<size_t>(rank)].resident_key_rows;
    rows.insert(rows.end(), resident.begin(), resident.end());
  }
  return normalize(std::move(rows));
}

std::vector<Range> key_rows_held_at_end(const TokenLayout& layout, const AttentionPlan& plan,
                                        int rank) {
  std::vector<Range> rows = rows_held_at_start(layout, plan, rank, RowKind::kKeyValue);
  for (const Round& round : plan.out) {
    for (const Transfer& transfer : round.transfers) {
      if (transfer.destination == rank && transfer.kind == RowKind::kKeyValue) {
        rows.push_back(transfer.line);
      }
    }
  }
  return normalize(std::move(rows));
}

std::vector<RowKind> result_kinds(Direction direction) {
  if (direction == Direction::kForward) return {RowKind::kQuery};
  return {RowKind::kQuery, RowKind::kKeyValue};
}

std::vector<Range> rows_with_other_parts(const TokenLayout& layout, const AttentionPlan& plan,
                                         RowKind kind) {
  std::vector<Range> rows = rows_of_several_servers(plan, kind);
  const Range chunk = layout.chunk(plan.chunk);
  if (kind == RowKind::kKeyValue && !chunk.empty()) {
    // Keys of earlier chunks have a part from their own chunk; those of a document that goes on
    // will have one from a later chunk.
    rows.push_back({0, chunk.begin});
    const Range last = layout.document(layout.document_at(chunk.end - 1));
    if (last.end > chunk.end) rows.push_back(intersect(last, chunk));
  }
  return normalize(std::move(rows));
}

namespace {

// Whether one of the normalized ranges has a row in common with `range`.
bool touches(const std::vector<Range>& ranges, const Range& range) {
  const auto found =
      std::lower_bound(ranges.begin(), ranges.end(), range.begin,
                       [](const Range& part, int64_t begin) { return part.end <= begin; });
  return found != ranges.end() && found->begin < range.end;
}

}  // namespace

void mark_partial_transfers(const TokenLayout& layout, AttentionPlan* plan) {
  const auto query_rows = rows_with_other_parts(layout, *plan, RowKind::kQuery);
  const auto key_rows = plan->direction == Direction::kBackward
                            ? rows_with_other_parts(layout, *plan, RowKind::kKeyValue)
                            : std::vector<Range>();
  for (Round& round : plan->back) {
    for (Transfer& transfer : round.transfers) {
      const bool is_query = transfer.kind == RowKind::kQuery;
      transfer.partial = touches(is_query ? query_rows : key_rows, transfer.line);
    }
  }
}

}  // namespace longspan
