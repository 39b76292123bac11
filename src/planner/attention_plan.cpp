#include "planner/attention_plan.h"

#include <tuple>

#include "base/check.h"

namespace longspan {
namespace {

// Pairs of the first `rows` local rows of a task whose row 0 sees one key: min(row + 1, keys)
// summed.
int64_t triangle(int64_t rows, int64_t keys) {
  if (rows <= 0) return 0;
  if (rows <= keys) return rows * (rows + 1) / 2;
  return keys * (keys + 1) / 2 + (rows - keys) * keys;
}

}  // namespace

int64_t visible_pairs(const Range& queries, const Range& keys) {
  if (queries.empty() || keys.empty()) return 0;
  return triangle(queries.end - keys.begin, keys.size()) -
         triangle(queries.begin - keys.begin, keys.size());
}

void finish_plan(const TokenLayout& layout, AttentionPlan* plan) {
  for (ServerPlan& server : plan->servers) {
    std::vector<Range> query_rows;
    std::vector<Range> key_rows;
    for (const AttentionTask& task : server.tasks) {
      query_rows.push_back(layout.to_line(task.document, task.queries));
      key_rows.push_back(layout.to_line(task.document, task.keys));
    }
    server.query_rows = normalize(std::move(query_rows));
    server.key_rows = normalize(std::move(key_rows));
  }
  for (std::vector<Round>* leg : {&plan->out, &plan->back}) {
    for (Round& round : *leg) {
      std::sort(round.transfers.begin(), round.transfers.end(),
                [](const Transfer& a, const Transfer& b) {
                  return std::tie(a.source, a.destination, a.kind, a.line.begin) <
                         std::tie(b.source, b.destination, b.kind, b.line.begin);
                });
    }
  }
}

RowMap::RowMap(std::vector<Range> ranges) : ranges_(std::move(ranges)) {
  for (const Range& range : ranges_) {
    first_row_.push_back(num_rows_);
    num_rows_ += range.size();
  }
}

Range RowMap::rows(const Range& line) const {
  const auto after =
      std::upper_bound(ranges_.begin(), ranges_.end(), line.begin,
                       [](int64_t position, const Range& range) { return position < range.begin; });
  LONGSPAN_CHECK(after != ranges_.begin() && std::prev(after)->contains(line), "line rows ", line,
                 " are not in one range of this buffer");
  const auto idx = static_cast<size_t>(after - ranges_.begin()) - 1;
  return shift(line, first_row_[idx] - ranges_[idx].begin);
}

std::vector<Transfer> transfers_between(const Round& round, int source, int destination) {
  std::vector<Transfer> found;
  for (const Transfer& transfer : round.transfers) {
    if (transfer.source == source && transfer.destination == destination) found.push_back(transfer);
  }
  return found;
}

}  // namespace longspan
