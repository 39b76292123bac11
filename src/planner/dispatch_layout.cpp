#include "planner/dispatch_layout.h"

#include <algorithm>

#include "base/check.h"

namespace longspan {
namespace {

// Buffer rows of line ranges that mostly ascend: the range looked up last, or the next one, holds
// most of them.
class RowFinder {
 public:
  explicit RowFinder(const std::vector<Range>& ranges) : ranges_(ranges) {
    first_row_.reserve(ranges.size());
    for (const Range& range : ranges) {
      first_row_.push_back(num_rows_);
      num_rows_ += range.size();
    }
  }

  int64_t num_rows() const { return num_rows_; }

  // The row of the first position.
  int64_t row(const Range& line) {
    if (!holds(at_, line) && !holds(++at_, line)) look_up(line);
    return first_row_[at_] + line.begin - ranges_[at_].begin;
  }

 private:
  bool holds(size_t idx, const Range& line) const {
    return idx < ranges_.size() && ranges_[idx].contains(line);
  }

  void look_up(const Range& line) {
    const auto after = std::upper_bound(
        ranges_.begin(), ranges_.end(), line.begin,
        [](int64_t position, const Range& range) { return position < range.begin; });
    LONGSPAN_CHECK(after != ranges_.begin() && std::prev(after)->contains(line), "line rows ", line,
                   " are not in one range of this buffer");
    at_ = static_cast<size_t>(after - ranges_.begin()) - 1;
  }

  const std::vector<Range>& ranges_;
  std::vector<int64_t> first_row_;
  int64_t num_rows_ = 0;
  size_t at_ = 0;
};

ServerRows server_rows(const TokenLayout& layout, const ServerPlan& server) {
  RowFinder queries(server.query_rows);
  RowFinder keys(server.key_rows);
  ServerRows rows{.query_rows = queries.num_rows(), .key_rows = keys.num_rows()};
  rows.tasks.reserve(server.tasks.size());
  for (const AttentionTask& task : server.tasks) {
    rows.tasks.push_back({queries.row(layout.to_line(task.document, task.queries)),
                          keys.row(layout.to_line(task.document, task.keys))});
  }
  return rows;
}

std::vector<DispatchMessage> messages(const Round& round) {
  std::vector<DispatchMessage> list;
  list.reserve(round.transfers.size());
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
