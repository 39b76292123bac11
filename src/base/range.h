// Half-open ranges of 64-bit positions, and lists of them.
//
// Two axes use the same type; the name of a variable says which: *line* positions count tokens of a
// micro-batch (layout/token_layout.h), *document* positions count tokens from a document's start.
//
//   Range rows{128, 256};  rows.size() == 128;  intersect(rows, {200, 300}) == Range{200, 256}
//
// Values without shared state; every function is pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <vector>

namespace longspan {

struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool empty() const { return end <= begin; }
  bool contains(int64_t position) const { return begin <= position && position < end; }
  bool contains(const Range& other) const { return begin <= other.begin && other.end <= end; }
  bool operator==(const Range&) const = default;
};

inline std::ostream& operator<<(std::ostream& out, const Range& range) {
  return out << '[' << range.begin << ", " << range.end << ')';
}

inline Range intersect(const Range& a, const Range& b) {
  const Range both{std::max(a.begin, b.begin), std::min(a.end, b.end)};
  return both.empty() ? Range{both.begin, both.begin} : both;
}

inline Range shift(const Range& range, int64_t by) {
  return {range.begin + by, range.end + by};
}

// Sorted, disjoint, non-empty, touching neighbours joined: the union of `ranges`. O(n log n).
std::vector<Range> normalize(std::vector<Range> ranges);

// The positions of `ranges` (normalized) that are not in `holes` (normalized). O(n + m).
std::vector<Range> subtract(const std::vector<Range>& ranges, const std::vector<Range>& holes);

// The positions in both (each normalized). O(n + m).
std::vector<Range> intersect(const std::vector<Range>& a, const std::vector<Range>& b);

// Number of positions in a list of disjoint ranges.
int64_t total_size(const std::vector<Range>& ranges);

// Whether the normalized list covers `range` wholly.
bool covers(const std::vector<Range>& ranges, const Range& range);

}  // namespace longspan
