#include "planner/held_rows.h"

#include <algorithm>
#include <utility>

namespace longspan {
namespace {

// Positions in more than one of the ranges with these begins and ends.
void add_overlaps(std::vector<int64_t>* begins, std::vector<int64_t>* ends,
                  std::vector<Range>* overlaps) {
  std::sort(begins->begin(), begins->end());
  std::sort(ends->begin(), ends->end());
  for (size_t idx = 0; idx + 1 < begins->size(); ++idx) {
    if ((*begins)[idx + 1] < (*ends)[idx]) {
      overlaps->push_back({(*begins)[idx + 1], (*ends)[idx]});
    }
  }
}

// Rows that two or more servers have in their buffers: those that at least i + 2 ranges begin
// before and at most i end before.
std::vector<Range> rows_of_several_servers(const AttentionPlan& plan, RowKind kind) {
  std::vector<int64_t> begins;
  std::vector<int64_t> ends;
  for (const ServerPlan& server : plan.servers) {
    for (const Range& rows : buffer_rows(server, kind)) {
      begins.push_back(rows.begin);
      ends.push_back(rows.end);
    }
  }
  std::vector<Range> several;
  add_overlaps(&begins, &ends, &several);
  return several;
}

// The same where all that servers have of other homes came in one round from there: rows of a home
// are looked for among what it sent and what it has itself.
std::vector<Range> sent_rows_of_several_servers(const AttentionPlan& plan, RowKind kind) {
  if (plan.out.empty()) return {};
  const std::vector<Transfer>& transfers = plan.out.front().transfers;
  std::vector<Range> several;
  std::vector<int64_t> begins;
  std::vector<int64_t> ends;
  for (size_t idx = 0; idx < transfers.size();) {
    const int source = transfers[idx].source;
    Range sent;
    begins.clear();
    ends.clear();
    for (; idx < transfers.size() && transfers[idx].source == source; ++idx) {
      const Range& line = transfers[idx].line;
      if (transfers[idx].kind != kind) continue;
      sent = begins.empty() ? line
                            : Range{std::min(sent.begin, line.begin), std::max(sent.end, line.end)};
      begins.push_back(line.begin);
      ends.push_back(line.end);
    }
    if (begins.empty()) continue;
    for (const Range& rows : buffer_rows(plan.servers[static_cast<size_t>(source)], kind)) {
      if (intersect(rows, sent).empty()) continue;
      begins.push_back(rows.begin);
      ends.push_back(rows.end);
    }
    add_overlaps(&begins, &ends, &several);
  }
  return several;
}

// Whether one of the normalized ranges has a row in common with another range, asked for ranges
// that mostly ascend.
class Touches {
 public:
  explicit Touches(const std::vector<Range>& ranges) : ranges_(ranges) {}

  bool operator()(const Range& range) {
    if (ranges_.empty()) return false;
    // The first range that ends after the begin is the one found last, the next, or to be searched.
    if (!is_first_after(range.begin) && (++at_, !is_first_after(range.begin))) search(range.begin);
    return at_ < ranges_.size() && ranges_[at_].begin < range.end;
  }

 private:
  // Halves without branches, which nobody could predict here.
  void search(int64_t begin) {
    at_ = 0;
    for (size_t left = ranges_.size(); left > 1;) {
      const size_t half = left / 2;
      at_ += ranges_[at_ + half - 1].end <= begin ? half : 0;
      left -= half;
    }
    at_ += ranges_[at_].end <= begin ? 1 : 0;
  }

  bool is_first_after(int64_t begin) const {
    return at_ < ranges_.size() && ranges_[at_].end > begin &&
           (at_ == 0 || ranges_[at_ - 1].end <= begin);
  }

  const std::vector<Range>& ranges_;
  size_t at_ = 0;
};

// The rows of several servers and, of keys, those to which other chunks add.
std::vector<Range> with_other_chunks(const TokenLayout& layout, const AttentionPlan& plan,
                                     RowKind kind, std::vector<Range> rows) {
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
  return with_other_chunks(layout, plan, kind, rows_of_several_servers(plan, kind));
}

RowsWithOtherParts rows_with_other_parts(const TokenLayout& layout, const AttentionPlan& plan) {
  RowsWithOtherParts rows;
  rows.queries = rows_with_other_parts(layout, plan, RowKind::kQuery);
  if (plan.direction == Direction::kBackward) {
    rows.keys = rows_with_other_parts(layout, plan, RowKind::kKeyValue);
  }
  return rows;
}

RowsWithOtherParts rows_with_other_parts_if_direct(const TokenLayout& layout,
                                                   const AttentionPlan& plan) {
  const auto rows_of = [&](RowKind kind) {
    return with_other_chunks(layout, plan, kind, sent_rows_of_several_servers(plan, kind));
  };
  RowsWithOtherParts rows;
  rows.queries = rows_of(RowKind::kQuery);
  if (plan.direction == Direction::kBackward) rows.keys = rows_of(RowKind::kKeyValue);
  return rows;
}

void mark_more_partial_transfers(const RowsWithOtherParts& rows, std::vector<Round>* back) {
  Touches queries(rows.queries);
  Touches keys(rows.keys);
  for (Round& round : *back) {
    for (Transfer& transfer : round.transfers) {
      if (transfer.partial) continue;
      Touches& touches = transfer.kind == RowKind::kQuery ? queries : keys;
      transfer.partial = touches(transfer.line);
    }
  }
}

void mark_partial_transfers(const RowsWithOtherParts& rows, AttentionPlan* plan) {
  for (Round& round : plan->back) {
    for (Transfer& transfer : round.transfers) transfer.partial = false;
  }
  mark_more_partial_transfers(rows, &plan->back);
}

void mark_partial_transfers(const TokenLayout& layout, AttentionPlan* plan) {
  mark_partial_transfers(rows_with_other_parts(layout, *plan), plan);
}

}  // namespace longspan
