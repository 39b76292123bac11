#include "plan_report/text_table.h"

#include <algorithm>

namespace longspan {

std::string TextTable::to_text(const std::string& indent) const {
  std::vector<size_t> widths(rows_.front().size(), 0);
  for (const auto& row : rows_) {
    // A short row is a remark behind its first cell: it widens nothing.
    if (row.size() < widths.size()) continue;
    for (size_t column = 0; column < widths.size(); ++column) {
      widths[column] = std::max(widths[column], row[column].size());
    }
  }
  widths[0] = 0;
  for (const auto& row : rows_) widths[0] = std::max(widths[0], row[0].size());
  std::string result;
  for (const auto& row : rows_) {
    std::string line = indent + row[0] + std::string(widths[0] - row[0].size(), ' ');
    for (size_t column = 1; column < row.size(); ++column) {
      const size_t width = row.size() < widths.size() ? 0 : widths[column];
      line += "  " + std::string(width - std::min(width, row[column].size()), ' ') + row[column];
    }
    result += line + "\n";
  }
  return result;
}

}  // namespace longspan
