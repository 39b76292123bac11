#include "base/nearest_name.h"

#include <algorithm>

#include "base/check.h"

namespace longspan {

// Optimal string alignment.
int64_t edit_distance(std::string_view from, std::string_view to) {
  const size_t width = to.size() + 1;
  std::vector<int64_t> table((from.size() + 1) * width);
  const auto at = [&](size_t i, size_t j) -> int64_t& { return table[i * width + j]; };
  for (size_t i = 0; i <= from.size(); ++i) at(i, 0) = static_cast<int64_t>(i);
  for (size_t j = 0; j <= to.size(); ++j) at(0, j) = static_cast<int64_t>(j);
  for (size_t i = 1; i <= from.size(); ++i) {
    for (size_t j = 1; j <= to.size(); ++j) {
      const int64_t replaced = at(i - 1, j - 1) + (from[i - 1] == to[j - 1] ? 0 : 1);
      at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, replaced});
      if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1]) {
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
      }
    }
  }
  return at(from.size(), to.size());
}

const std::string& nearest_name(std::string_view name, const std::vector<std::string>& names) {
  LONGSPAN_CHECK(!names.empty(), "no names to choose from");
  return *std::min_element(names.begin(), names.end(),
                           [&](const std::string& a, const std::string& b) {
                             return edit_distance(name, a) < edit_distance(name, b);
                           });
}

}  // namespace longspan
