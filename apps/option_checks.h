// What numbers and words on a command line may be. A value that is refused names its option and
// what it takes, before the verb begins.
//
//   verb->add_option("--batches", batches, "...")->check(whole_number(1, 100000));
//   refuse_empty_words(app);          // once, when all verbs are there: --json "" is no path
//
// Main thread.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <limits>
#include <string>

namespace longspan {

constexpr int64_t kAnyWholeNumber = std::numeric_limits<int64_t>::max();

// From `low` to `high`, both allowed.
CLI::Validator whole_number(int64_t low, int64_t high = kAnyWholeNumber);

void refuse_empty_words(CLI::App& app);

}  // namespace longspan
