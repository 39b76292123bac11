#include "data/lengths_file.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/printable.h"
#include "formats/json.h"

namespace longspan {
namespace {

// Sums of as many lengths as memory holds stay within 63 bits.
constexpr int64_t kLargest = int64_t{1} << 40;
constexpr size_t kShown = 40;  // bytes of a word in a message

std::string_view without_blanks(std::string_view line) {
  const size_t begin = line.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1);
}

int64_t parse_length(std::string_view line, const std::string& origin, int64_t number) {
  const std::string_view word = without_blanks(line);
  const auto fail = [&](const char* problem) {
    throw UserError(
        text(origin, ":", number, ": \"", printable(word.substr(0, kShown)), "\" ", problem,
             "; each line holds the length of one document, a whole number from 1 to ", kLargest));
  };
  int64_t length = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), length);
  if (error == std::errc::result_out_of_range) fail("is too large");
  if (error != std::errc() || end != word.data() + word.size()) fail("is not a whole number");
  if (length == 0) fail("is zero");
  if (length < 0) fail("is negative");
  if (length > kLargest) fail("is too large");
  return length;
}

}  // namespace

std::vector<int64_t> parse_lengths(std::string_view content, const std::string& origin) {
  std::vector<int64_t> lengths;
  int64_t number = 0;
  while (!content.empty()) {
    const size_t end = std::min(content.find('\n'), content.size());
    lengths.push_back(parse_length(content.substr(0, end), origin, ++number));
    content.remove_prefix(std::min(end + 1, content.size()));
  }
  if (lengths.empty())
    throw UserError(text(origin, " is empty; it must hold a length on each line"));
  return lengths;
}

std::vector<int64_t> read_lengths(const std::filesystem::path& path) {
  return parse_lengths(read_text(path), path.string());
}

}  // namespace longspan
