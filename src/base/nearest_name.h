// Which of the known names a mistyped one was meant to be.
//
//   throw UserError(text("unknown preset \"", name, "\"; did you mean \"",
//                        nearest_name(name, names), "\"?"));
//
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

// Insertions, deletions, replacements and swaps of two neighbours that turn one into the other.
int64_t edit_distance(std::string_view from, std::string_view to);

// The first of those with the fewest edits; `names` is not empty.
const std::string& nearest_name(std::string_view name, const std::vector<std::string>& names);

}  // namespace longspan
