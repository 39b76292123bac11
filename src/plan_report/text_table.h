// Columns of text, aligned: the first to the left, the others to the right.
//
//   TextTable table({"server", "load ms", "sent MB"});
//   table.add({"3", "104.9", "274"});
//   std::cout << table.to_text();
//
// One thread.
#pragma once

#include <string>
#include <vector>

namespace longspan {

class TextTable {
 public:
  explicit TextTable(std::vector<std::string> head) : rows_{std::move(head)} {}

  // As many cells as the head has, or fewer: the rest stays empty.
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  // Each line begins with `indent`.
  std::string to_text(const std::string& indent = "  ") const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace longspan
