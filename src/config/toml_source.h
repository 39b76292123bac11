// TOML text as a flat list of dotted names with untyped values and their lines: the only place that
// knows the TOML library. Private to config/.
//
//   for (const RawSetting& s : read_toml(text, "run.toml")) // s.name == "data.fasta.max_n_run"
//
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace longspan {

struct RawValue {
  std::string type_name;  // in words, with its article: "an integer", "a string"
  std::string written;    // as TOML writes it
  // monostate: a kind that no key takes (dates, tables in arrays).
  std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<RawValue>> value;
};

struct RawSetting {
  std::string name;
  RawValue value;
  std::string origin;  // "run.toml:14", or "command line"
  std::string where;   // how an error begins: "run.toml:14", or the whole override
};

struct RawDocument {
  std::vector<RawSetting> settings;  // in the order of lines
  // Tables, empty ones included: name and "run.toml:3".
  std::vector<std::pair<std::string, std::string>> sections;
};

// UserError with line and column if the text is not TOML.
RawDocument read_toml(std::string_view source, const std::string& path);

// One value as TOML writes it; empty, or what is wrong with it.
std::string read_toml_value(std::string_view written, RawValue& value);

}  // namespace longspan
