#include "planner/shared_rows.h"

#include <algorithm>

namespace longspan {

void SharedRows::split(std::span<const Transfer> transfers, int64_t least_rows,
                       std::vector<Transfer>* rest) {
  by_begin_.clear();
  for (size_t idx = 0; idx < transfers.size(); ++idx) {
    by_begin_.push_back({transfers[idx].line, idx});
  }
  const auto begins_before = [](const Wanted& a, const Wanted& b) {
    return a.line.begin != b.line.begin ? a.line.begin < b.line.begin : a.transfer < b.transfer;
  };
  // Of one document all begin alike.
  if (!std::is_sorted(by_begin_.begin(), by_begin_.end(), begins_before)) {
    std::sort(by_begin_.begin(), by_begin_.end(), begins_before);
  }
  is_alone_.assign(transfers.size(), 0);
  pieces_.clear();
  // Transfers that have rows in common, directly or through others, form a cluster.
  for (size_t begin = 0; begin < by_begin_.size();) {
    int64_t reach = by_begin_[begin].line.end;
    size_t end = begin + 1;
    for (; end < by_begin_.size() && by_begin_[end].line.begin < reach; ++end) {
      reach = std::max(reach, by_begin_[end].line.end);
    }
    if (end == begin + 1) {
      is_alone_[by_begin_[begin].transfer] = 1;
    } else {
      sweep(transfers, {by_begin_.data() + begin, end - begin}, least_rows);
    }
    begin = end;
  }
  for (size_t idx = 0; idx < transfers.size(); ++idx) {
    if (is_alone_[idx] != 0) rest->push_back(transfers[idx]);
  }
  rest->insert(rest->end(), pieces_.begin(), pieces_.end());
}

// The cluster comes by rising begin, and takers of one begin ascend.
void SharedRows::sweep(std::span<const Transfer> transfers, std::span<const Wanted> cluster,
                       int64_t least_rows) {
  ends_.clear();
  for (const Wanted& wanted : cluster) {
    ends_.push_back({wanted.line.end, transfers[wanted.transfer].destination});
  }
  std::sort(ends_.begin(), ends_.end(), [](const End& a, const End& b) { return a.at < b.at; });
  active_.clear();
  int64_t at = cluster.front().line.begin;
  auto begins = cluster.begin();
  for (auto end = ends_.begin(); end != ends_.end();) {
    const int64_t next = begins == cluster.end() ? end->at : std::min(begins->line.begin, end->at);
    if (at < next && !active_.empty()) add(transfers.front(), {at, next}, least_rows);
    at = next;
    for (; end != ends_.end() && end->at == at; ++end) {
      active_.erase(std::find(active_.begin(), active_.end(), end->taker));
    }
    for (; begins != cluster.end() && begins->line.begin == at; ++begins) {
      const int taker = transfers[begins->transfer].destination;
      const auto place = active_.empty() || active_.back() < taker
                             ? active_.end()
                             : std::lower_bound(active_.begin(), active_.end(), taker);
      active_.insert(place, taker);
    }
  }
}

void SharedRows::add(const Transfer& like, const Range& line, int64_t least_rows) {
  if (active_.size() == 1 || line.size() < least_rows) {
    for (const int taker : active_) pieces_.push_back({like.source, taker, like.kind, line, false});
    return;
  }
  stretches_.push_back({like.source, like.kind, line, takers_.size(), active_.size()});
  takers_.insert(takers_.end(), active_.begin(), active_.end());
}

}  // namespace longspan
