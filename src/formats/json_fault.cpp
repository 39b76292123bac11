#include "formats/json_fault.h"

#include <charconv>
#include <string_view>

#include "base/error.h"

namespace longspan {
namespace {

// The number behind the first occurrence of `word`; 0 if there is none.
int64_t number_after(std::string_view words, std::string_view word) {
  const size_t at = words.find(word);
  int64_t number = 0;
  if (at == std::string_view::npos) return number;
  std::from_chars(words.data() + at + word.size(), words.data() + words.size(), number);
  return number;
}

}  // namespace

std::string JsonFault::in_line() const {
  return text("not valid JSON", column > 0 ? text(" at column ", column) : "", ": ", reason);
}

JsonFault describe_json_error(const std::exception& error) {
  // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error while parsing
  // value - unexpected end of input; expected '}'"
  JsonFault fault;
  std::string_view words = error.what();
  const size_t bracket = words.find("] ");
  if (words.starts_with('[') && bracket != std::string_view::npos) words.remove_prefix(bracket + 2);
  fault.line = number_after(words, " line ");
  fault.column = number_after(words, " column ");
  const size_t place_end = words.find(": ");
  if (words.starts_with("parse error") && place_end != std::string_view::npos) {
    words.remove_prefix(place_end + 2);
  }
  const size_t dash = words.find(" - ");
  if (words.starts_with("syntax error") && dash != std::string_view::npos) {
    words.remove_prefix(dash + 3);
  }
  fault.reason = words;
  return fault;
}

}  // namespace longspan
