#include "planner/dispatch_layout.h"

#include <algorithm>

#include "base/check.h"

namespace longspan {
namespace {

// Buffer rows of line ranges that mostly ascend: the range looked up last, or the next one, holds
// most of them.
class RowFinder {
 public:
  // `first_row` is room to work in.
  RowFinder(const std::vector<Range>& ranges, std::vector<int64_t>* first_row)
      : ranges_(ranges), first_row_(*first_row) {
    first_row_.clear();
    for (const Range& range : ranges) {
      first_row_.push_back(num_rows_);
      num_rows_ += range.size();
    }
    if (!ranges.empty()) go_to(0);
  }

  int64_t num_rows() const { return num_rows_; }

  // The row of the first position.
  int64_t row(const Range& line) {
    if (!held_.contains(line)) find(line);
    return line.begin + to_row_;
  }

 private:
  void find(const Range& line) {
    if (at_ + 1 < ranges_.size() && ranges_[at_ + 1].contains(line)) {
      go_to(at_ + 1);
      return;
    }
    const auto after = std::upper_bound(
        ranges_.begin(), ranges_.end(), line.begin,
        [](int64_t position, const Range& range) { return position < range.begin; });
    LONGSPAN_CHECK(after != ranges_.begin() && std::prev(after)->contains(line), "line rows ", line,
                   " are not in one range of this buffer");
    go_to(static_cast<size_t>(after - ranges_.begin()) - 1);
  }

  void go_to(size_t idx) {
    at_ = idx;
    held_ = ranges_[idx];
    to_row_ = first_row_[idx] - held_.begin;
  }

  const std::vector<Range>& ranges_;
  std::vector<int64_t>& first_row_;
  int64_t num_rows_ = 0;
  size_t at_ = 0;
  Range held_{1, 0};  // ranges_[at_]
  int64_t to_row_ = 0;
};

class RowCounter {
 public:
  explicit RowCounter(const TokenLayout& layout) : layout_(layout) {}

  ServerRows rows_of(const ServerPlan& server) {
    RowFinder queries(server.query_rows, &first_query_row_);
    RowFinder keys(server.key_rows, &first_key_row_);
    ServerRows rows{.query_rows = queries.num_rows(), .key_rows = keys.num_rows()};
    rows.tasks.resize(server.tasks.size());
    TaskRows* at = rows.tasks.data();
    for (const AttentionTask& task : server.tasks) {
      // A row outside of the document is in no range of the buffer either.
      const int64_t begin = layout_.document(task.document).begin;
      *at++ = {queries.row(shift(task.queries, begin)), keys.row(shift(task.keys, begin))};
    }
    return rows;
  }

 private:
  const TokenLayout& layout_;
  std::vector<int64_t> first_query_row_;
  std::vector<int64_t> first_key_row_;
};

bool same_message(const Transfer& a, const Transfer& b) {
  return a.source == b.source && a.destination == b.destination;
}

// `list` is room to work in.
std::vector<DispatchMessage> messages(const Round& round, std::vector<DispatchMessage>* list) {
  const std::vector<Transfer>& transfers = round.transfers;
  list->clear();
  for (size_t idx = 0; idx < transfers.size();) {
    DispatchMessage message{transfers[idx].source, transfers[idx].destination, idx, idx, 0, 0};
    for (;
         idx < transfers.size() && same_message(transfers[message.transfer_begin], transfers[idx]);
         ++idx) {
      (transfers[idx].kind == RowKind::kQuery ? message.query_rows : message.key_rows) +=
          transfers[idx].line.size();
    }
    message.transfer_end = idx;
    list->push_back(message);
  }
  return {list->begin(), list->end()};
}

}  // namespace

DispatchLayout dispatch_layout(const TokenLayout& layout, const AttentionPlan& plan) {
  DispatchLayout dispatch;
  dispatch.servers.reserve(plan.servers.size());
  RowCounter counter(layout);
  for (const ServerPlan& server : plan.servers) {
    dispatch.servers.push_back(counter.rows_of(server));
  }
  std::vector<DispatchMessage> list;
  dispatch.out.reserve(plan.out.size());
  dispatch.back.reserve(plan.back.size());
  for (const Round& round : plan.out) dispatch.out.push_back(messages(round, &list));
  for (const Round& round : plan.back) dispatch.back.push_back(messages(round, &list));
  return dispatch;
}

}  // namespace longspan
