// Reads a run configuration: a TOML file, then overrides from the command line, then the rules of
// "auto", then the checks that look at several keys at once.
//
//   const LoadedConfig loaded = load_run_config("run.toml", {"--optimizer.lr=1e-3"}, around);
//   std::cout << loaded.annotated_toml();    // --print-config: each value with where it came from
//   write_text_atomic(folder / "config.toml", loaded.toml());
//
// Everything is strict: an unknown key names the nearest one, and a wrong type, a value out of
// range or a contradiction is a UserError that begins with file and line, or with the override. No
// environment variable is read; what "auto" needs to know of the machine comes in `Surroundings`.
// The written text loads again to the same configuration. Pure functions except for reading the
// file.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "config/keys.h"
#include "config/run_config.h"

namespace longspan {

// One key after loading.
struct Setting {
  const ConfigKey* key = nullptr;
  ConfigValue value;
  // "default", "run.toml:14", "command line", or "auto: " and the reason.
  std::string origin;
  // Whether the file or the command line gave a value (not "auto").
  bool explicit_value = false;
  // Whether the value is the choice of the key's rule.
  bool is_auto = false;

  // Whether somebody chose the value, and not the one that holds anyway.
  bool differs_from_default() const;
};

struct LoadedConfig {
  RunConfig config;
  std::vector<Setting> settings;  // in the order of config_keys()
  std::string source;             // the file, as errors name it

  const Setting& setting(std::string_view name) const;
  // "layout.band = 4 (run.toml:7)": how errors name a value.
  std::string quote(std::string_view name) const;
  // "data.train (run.toml:3)": without the value, which may be a long list.
  std::string cite(std::string_view name) const;

  // The resolved configuration as TOML, for files and for people. Files keep "auto" for what goes
  // by the machine (layout.threads_per_rank): the same run on another machine has the same text.
  // People get every value, with its origin as a comment.
  std::string toml() const;
  std::string annotated_toml() const;
  // The part of annotated_toml() that differs from the defaults.
  std::string changed_toml() const;
  // Fingerprint of toml(), 16 hexadecimal digits.
  std::string hash() const;
};

// Overrides read `--section.key=value`. A string needs no quotes; a list is written as in TOML, or
// is one element without brackets. Two overrides of one key are an error.
LoadedConfig load_run_config(const std::filesystem::path& path,
                             const std::vector<std::string>& overrides = {},
                             const Surroundings& around = {});

// The same from text; `origin` stands for the path in errors.
LoadedConfig parse_run_config(std::string_view source, const std::string& origin,
                              const std::vector<std::string>& overrides = {},
                              const Surroundings& around = {});

// Does `body`; its UserError is thrown anew with the key in front that led there, and its value but
// for lists:
//
//   model.path = "modles/x" (run.toml:3): cannot read ...
template <typename Body>
auto naming_key(const LoadedConfig& loaded, std::string_view name, Body body) {
  try {
    return body();
  } catch (const UserError& error) {
    const bool is_list =
        std::holds_alternative<std::vector<std::string>>(loaded.setting(name).value);
    throw UserError(text(is_list ? loaded.cite(name) : loaded.quote(name), ": ", error.what()));
  }
}

// What training needs beyond a valid file: training documents. UserError if it is missing.
void require_training_data(const LoadedConfig& loaded);

}  // namespace longspan
