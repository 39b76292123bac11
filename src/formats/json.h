// JSON files, read and written whole, with errors that name the file. The parser is nlohmann-json;
// its full header costs seconds per file, so headers include only json_fwd.hpp through this one and
// sources that touch values include <nlohmann/json.hpp>.
//
//   const Json config = read_json(folder / "config.json");      // UserError: path, line, column
//   write_json_atomic(folder / "manifest.json", manifest);      // temporary file, fsync, rename
//
// Pure functions; any thread.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "formats/regular_file.h"  // read_text, beside write_text_atomic

namespace longspan {

// Objects keep the order of their keys, so that written files are stable.
using Json = nlohmann::ordered_json;

// `origin` names the text in errors (a path, usually).
Json parse_json(std::string_view text, const std::string& origin);
Json read_json(const std::filesystem::path& path);
void write_json_atomic(const std::filesystem::path& path, const Json& value);

// Writes under a temporary name in the same folder, syncs and renames. UserError on failure (disk
// full, permission); the old file, if any, is then untouched and no temporary stays behind.
void write_text_atomic(const std::filesystem::path& path, std::string_view content);

}  // namespace longspan
