#include "option_checks.h"

#include <charconv>

#include "base/error.h"

namespace longspan {

CLI::Validator whole_number(int64_t low, int64_t high) {
  const auto check = [low, high](const std::string& word) -> std::string {
    int64_t value = 0;
    const char* const end = word.data() + word.size();
    const auto [after, error] = std::from_chars(word.data(), end, value);
    if (error == std::errc() && after == end && value >= low && value <= high) return "";
    const std::string range =
        high == kAnyWholeNumber ? text(" of at least ", low) : text(" from ", low, " to ", high);
    return text("\"", word, "\" is not a whole number", range);
  };
  return CLI::Validator(check, "");
}

void refuse_empty_words(CLI::App& app) {
  const CLI::Validator not_empty(
      [](const std::string& word) { return word.empty() ? "the value is empty" : ""; }, "");
  for (CLI::Option* option : app.get_options()) {
    if (option->get_expected_max() > 0) option->check(not_empty);  // flags take no value
  }
  for (CLI::App* verb : app.get_subcommands({})) refuse_empty_words(*verb);
}

}  // namespace longspan
