#include "base/range.h"

namespace longspan {

std::vector<Range> normalize(std::vector<Range> ranges) {
  std::erase_if(ranges, [](const Range& range) { return range.empty(); });
  const auto begins_before = [](const Range& a, const Range& b) { return a.begin < b.begin; };
  // Many lists come in order.
  if (!std::is_sorted(ranges.begin(), ranges.end(), begins_before)) {
    std::sort(ranges.begin(), ranges.end(), begins_before);
  }
  size_t joined = 0;
  for (const Range& range : ranges) {
    if (joined > 0 && range.begin <= ranges[joined - 1].end) {
      ranges[joined - 1].end = std::max(ranges[joined - 1].end, range.end);
    } else {
      ranges[joined++] = range;
    }
  }
  ranges.resize(joined);
  return ranges;
}

std::vector<Range> subtract(const std::vector<Range>& ranges, const std::vector<Range>& holes) {
  std::vector<Range> left;
  size_t hole_idx = 0;
  for (const Range& range : ranges) {
    int64_t begin = range.begin;
    while (hole_idx < holes.size() && holes[hole_idx].end <= begin) ++hole_idx;
    for (size_t idx = hole_idx; idx < holes.size() && holes[idx].begin < range.end; ++idx) {
      if (holes[idx].begin > begin) left.push_back({begin, holes[idx].begin});
      begin = std::max(begin, holes[idx].end);
    }
    if (begin < range.end) left.push_back({begin, range.end});
  }
  return left;
}

std::vector<Range> intersect(const std::vector<Range>& a, const std::vector<Range>& b) {
  std::vector<Range> both;
  size_t a_idx = 0;
  size_t b_idx = 0;
  while (a_idx < a.size() && b_idx < b.size()) {
    const Range common = intersect(a[a_idx], b[b_idx]);
    if (!common.empty()) both.push_back(common);
    (a[a_idx].end < b[b_idx].end ? a_idx : b_idx) += 1;
  }
  return both;
}

int64_t total_size(const std::vector<Range>& ranges) {
  int64_t total = 0;
  for (const Range& range : ranges) total += range.size();
  return total;
}

bool covers(const std::vector<Range>& ranges, const Range& range) {
  if (range.empty()) return true;
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), range.begin,
                       [](int64_t position, const Range& other) { return position < other.begin; });
  return after != ranges.begin() && std::prev(after)->contains(range);
}

}  // namespace longspan
