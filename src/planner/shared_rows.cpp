#include "planner/shared_rows.h"

#include <algorithm>

namespace longspan {

void SharedRows::split(std::span<const Transfer> transfers, int64_t least_rows,
                       std::vector<Transfer>* rest) {
  by_begin_.clear();
  for (size_t idx = 0; idx < transfers.size(); ++idx)
    by_begin_.push_back({transfers[idx].line, idx});
  std::sort(by_begin_.begin(), by_begin_.end(), [](const Wanted& a, const Wanted& b) {
    return a.line.begin != b.line.begin ? a.line.begin < b.line.begin : a.transfer < b.transfer;
  });
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

void SharedRows::sweep(std::span<const Transfer> transfers, std::span<const Wanted> cluster,
                       int64_t least_rows) {
  edges_.clear();
  for (const Wanted& wanted : cluster) {
    const int taker = transfers[wanted.transfer].destination;
    edges_.push_back({wanted.line.begin, true, taker});
    edges_.push_back({wanted.line.end, false, taker});
  }
  std::sort(edges_.begin(), edges_.end(), [](const Edge& a, const Edge& b) {
    if (a.at != b.at) return a.at < b.at;
    return a.begins != b.begins ? b.begins : a.taker < b.taker;
  });
  active_.clear();
  for (size_t idx = 0; idx < edges_.size(); ++idx) {
    const Edge& edge = edges_[idx];
    if (idx > 0 && edges_[idx - 1].at < edge.at && !active_.empty()) {
      add(transfers.front(), {edges_[idx - 1].at, edge.at}, least_rows);
    }
    const auto place = std::lower_bound(active_.begin(), active_.end(), edge.taker);
    if (edge.begins) {
      active_.insert(place, edge.taker);
    } else {
      active_.erase(place);
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
