#include "planner/shared_rows.h"

#include <algorithm>

namespace longspan {

void SharedRows::split(std::span<const Transfer> transfers, int64_t least_rows,
                       std::vector<Transfer>* rest) {
  by_begin_.assign(transfers.begin(), transfers.end());
  std::sort(by_begin_.begin(), by_begin_.end(), [](const Transfer& a, const Transfer& b) {
    return a.line.begin != b.line.begin ? a.line.begin < b.line.begin
                                        : a.destination < b.destination;
  });
  // Transfers that have rows in common, directly or through others, form a cluster.
  for (size_t begin = 0; begin < by_begin_.size();) {
    int64_t reach = by_begin_[begin].line.end;
    size_t end = begin + 1;
    for (; end < by_begin_.size() && by_begin_[end].line.begin < reach; ++end) {
      reach = std::max(reach, by_begin_[end].line.end);
    }
    if (end == begin + 1) {
      rest->push_back(by_begin_[begin]);
    } else {
      sweep({by_begin_.data() + begin, end - begin}, least_rows, rest);
    }
    begin = end;
  }
}

void SharedRows::sweep(std::span<const Transfer> cluster, int64_t least_rows,
                       std::vector<Transfer>* rest) {
  edges_.clear();
  for (const Transfer& transfer : cluster) {
    edges_.push_back({transfer.line.begin, true, transfer.destination});
    edges_.push_back({transfer.line.end, false, transfer.destination});
  }
  std::sort(edges_.begin(), edges_.end(), [](const Edge& a, const Edge& b) {
    if (a.at != b.at) return a.at < b.at;
    return a.begins != b.begins ? b.begins : a.taker < b.taker;
  });
  active_.clear();
  for (size_t idx = 0; idx < edges_.size(); ++idx) {
    const Edge& edge = edges_[idx];
    if (idx > 0 && edges_[idx - 1].at < edge.at && !active_.empty()) {
      add(cluster.front(), {edges_[idx - 1].at, edge.at}, least_rows, rest);
    }
    const auto place = std::lower_bound(active_.begin(), active_.end(), edge.taker);
    if (edge.begins) {
      active_.insert(place, edge.taker);
    } else {
      active_.erase(place);
    }
  }
}

void SharedRows::add(const Transfer& like, const Range& line, int64_t least_rows,
                     std::vector<Transfer>* rest) {
  if (active_.size() == 1 || line.size() < least_rows) {
    for (const int taker : active_) rest->push_back({like.source, taker, like.kind, line, false});
    return;
  }
  stretches_.push_back({like.source, like.kind, line, takers_.size(), active_.size()});
  takers_.insert(takers_.end(), active_.begin(), active_.end());
}

}  // namespace longspan
