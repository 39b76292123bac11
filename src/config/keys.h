// The one table of configuration keys. Parsing, checking, `--print-config`, the nearest-name
// suggestion and docs/configuration.md all read it, so none of them can disagree with another.
//
//   for (const ConfigKey& key : config_keys()) std::cout << key.name << ": " << key.doc << '\n';
//   const ConfigKey* key = find_key("optimizer.lr");
//   key->set(config, ConfigValue{1e-3});
//
// To add a key: a field with its default in run_config.h, a row in keys.cpp, and
// `write_config_docs docs/configuration.md`. The table is built once and never changes; any thread
// may read it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/run_config.h"

namespace longspan {

using ConfigValue =
    std::variant<bool, int64_t, double, std::string, std::vector<std::string>, std::vector<double>>;

// What a number may be. Bounds in double are exact for every integer limit in the table.
struct Bounds {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;
  bool high_open = false;

  bool contain(double value) const;
  // ">= 1", "> 0", "0 .. 1", or "" without bounds. An open end is written as in "0 <= x < 1".
  std::string describe() const;
};

// What the rules of "auto" know beside the configuration itself.
struct Surroundings {
  int64_t launcher_ranks = 0;    // world size of the launcher; 0: one process, ranks are threads
  int64_t hardware_threads = 0;  // 0: unknown, another machine's configuration is read
  int64_t gpus = 0;              // that this build can use
  bool gpu_per_process = false;  // the launcher's ranks can have a GPU each
};

struct AutoChoice {
  ConfigValue value;
  std::string reason;
};

using AutoRule = std::function<AutoChoice(const RunConfig&, const Surroundings&)>;

struct ConfigKey {
  std::string name;
  std::string doc;
  std::string unit;                      // of a number; may be empty
  std::vector<std::string> other_names;  // last words under which people look for this key
  std::vector<std::string> choices;      // of a string; empty: any
  Bounds bounds;                         // of a number, or of each number in a list
  int64_t length = -1;                   // of a list of numbers; -1: any
  AutoRule automatic;                    // empty: "auto" is not a value of this key
  std::string automatic_doc;             // the rule in words
  bool of_machine = false;  // the rule looks at the machine, and the choice changes no result
  std::function<ConfigValue(const RunConfig&)> get;
  std::function<void(RunConfig&, const ConfigValue&)> set;

  ConfigValue initial() const { return get(RunConfig{}); }
  // "integer", "float", "boolean", "string", "list of strings", "list of floats".
  std::string type_name() const;
  // The default as TOML writes it; "auto" in quotes where a rule gives it.
  std::string default_text() const;
};

// In the order in which they are printed: by section, and within one by importance.
const std::vector<ConfigKey>& config_keys();

// nullptr if there is none of that name.
const ConfigKey* find_key(std::string_view name);

// The key that a wrong name is meant to be: by fewest insertions, deletions, replacements and
// swaps, where a right last word under a wrong section counts as close, and so does a name that the
// key has in other programs (learning_rate). nullptr if none is near.
const ConfigKey* nearest_key(std::string_view name);

// A value as TOML writes it; floats in the fewest digits that read back equal.
std::string toml_text(const ConfigValue& value);
std::string toml_quoted(std::string_view value);

}  // namespace longspan
