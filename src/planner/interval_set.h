// A set of line positions that changes, kept as disjoint ranges.
//
// Why: the planner and its verifier play a plan round by round; which rows a rank holds grows and
// shrinks there. Ranges that touch are one range, so `contains` is one look-up.
//
//   IntervalSet held({{0, 128}});
//   held.insert({128, 256});            // now [0, 256)
//   held.contains({64, 192});           // true
//
// A plain value for one thread. Each operation costs O(log n + ranges that it swallows).
#pragma once

#include <map>
#include <vector>

#include "base/range.h"

namespace longspan {

class IntervalSet {
 public:
  IntervalSet() = default;
  explicit IntervalSet(const std::vector<Range>& ranges) {
    for (const Range& range : ranges) insert(range);
  }

  bool contains(const Range& range) const {
    if (range.empty()) return true;
    const auto after = end_of_.upper_bound(range.begin);
    return after != end_of_.begin() && std::prev(after)->second >= range.end;
  }

  bool intersects(const Range& range) const {
    if (range.empty()) return false;
    const auto after = end_of_.lower_bound(range.end);
    return after != end_of_.begin() && std::prev(after)->second > range.begin;
  }

  void insert(Range range) {
    if (range.empty()) return;
    auto at = end_of_.upper_bound(range.begin);
    if (at != end_of_.begin() && std::prev(at)->second >= range.begin) --at;
    while (at != end_of_.end() && at->first <= range.end) {
      range = {std::min(range.begin, at->first), std::max(range.end, at->second)};
      at = end_of_.erase(at);
    }
    end_of_.emplace(range.begin, range.end);
  }

  void erase(const Range& range) {
    if (range.empty()) return;
    auto at = end_of_.upper_bound(range.begin);
    if (at != end_of_.begin() && std::prev(at)->second > range.begin) --at;
    while (at != end_of_.end() && at->first < range.end) {
      const Range old{at->first, at->second};
      at = end_of_.erase(at);
      if (old.begin < range.begin) end_of_.emplace(old.begin, range.begin);
      if (old.end > range.end) end_of_.emplace(range.end, old.end);
    }
  }

  // Normalized.
  std::vector<Range> ranges() const {
    std::vector<Range> list;
    list.reserve(end_of_.size());
    for (const auto& [begin, end] : end_of_) list.push_back({begin, end});
    return list;
  }

 private:
  std::map<int64_t, int64_t> end_of_;  // begin -> end
};

}  // namespace longspan
