// A file of document lengths: one whole number of tokens on each line.
//
//   std::vector<int64_t> lengths = read_lengths("lengths.txt");
//
// Blanks around a number are allowed, and one line end at the end; nothing else. UserError with
// path and line for a length that is zero, negative, too large or no number, and for an empty file.
// Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

std::vector<int64_t> read_lengths(const std::filesystem::path& path);
// `origin` names the text in errors.
std::vector<int64_t> parse_lengths(std::string_view content, const std::string& origin);

}  // namespace longspan
