#include "config/config_loader.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/nearest_name.h"
#include "base/random.h"
#include "config/contradictions.h"
#include "config/toml_source.h"
#include "formats/regular_file.h"

namespace longspan {
namespace {

std::string section_of(const std::string& name) {
  return name.substr(0, name.rfind('.'));
}

// "data.fasta.mask_n_weight (float, default 0)"; an integral default without ".0" reads better.
std::string key_hint(const ConfigKey& key) {
  std::string initial = key.default_text();
  if (key.type_name() == "float" && initial.ends_with(".0")) initial.resize(initial.size() - 2);
  return text(key.name, " (", key.type_name(), ", default ", initial, ")");
}

// The sections, and within each the last words of its keys, as they are printed.
std::vector<std::pair<std::string, std::vector<std::string>>> sections() {
  std::vector<std::pair<std::string, std::vector<std::string>>> result;
  for (const ConfigKey& key : config_keys()) {
    const std::string section = section_of(key.name);
    if (result.empty() || result.back().first != section) result.push_back({section, {}});
    result.back().second.push_back(key.name.substr(section.size() + 1));
  }
  return result;
}

std::string listed(const std::vector<std::string>& words) {
  std::string result;
  for (const std::string& word : words) result += (result.empty() ? "" : ", ") + word;
  return result;
}

// What there is, for a name that is near to no key.
std::string known_near(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& [section, keys] : sections()) {
    if (section == section_of(name)) return text("[", section, "] holds ", listed(keys));
    names.push_back("[" + section + "]");
  }
  return text("there are ", listed(names), "; docs/configuration.md says what they hold");
}

[[noreturn]] void fail_unknown(const RawSetting& setting) {
  const ConfigKey* nearest = nearest_key(setting.name);
  throw UserError(
      text(setting.where, ": unknown key ", setting.name, "; ",
           nearest != nullptr ? "nearest: " + key_hint(*nearest) : known_near(setting.name)));
}

[[noreturn]] void fail_type(const ConfigKey& key, const RawSetting& setting) {
  std::string expected = key.type_name();
  if (key.automatic) expected += " or \"auto\"";
  const std::string unit = key.unit.empty() ? "" : text(" (", key.unit, ")");
  const bool one_for_many = key.type_name() == "list of strings" &&
                            std::holds_alternative<std::string>(setting.value.value);
  const std::string mend =
      one_for_many
          ? text("; write [\"", std::get<std::string>(setting.value.value), "\"], quotes included")
          : "";
  throw UserError(text(setting.where, ": ", key.name, " is ", setting.value.type_name, ", ",
                       setting.value.written, "; it takes: ", expected, unit, mend));
}

bool as_number(const RawValue& raw, double& number) {
  if (const auto* real = std::get_if<double>(&raw.value)) {
    number = *real;
  } else if (const auto* integer = std::get_if<int64_t>(&raw.value)) {
    number = static_cast<double>(*integer);
  } else {
    return false;
  }
  return true;
}

template <typename Element, typename Read>
bool convert_list(const RawValue& raw, Read read, ConfigValue& value) {
  const auto* elements = std::get_if<std::vector<RawValue>>(&raw.value);
  if (elements == nullptr) return false;
  std::vector<Element> list;
  for (const RawValue& element : *elements) {
    Element converted{};
    if (!read(element, converted)) return false;
    list.push_back(std::move(converted));
  }
  value = std::move(list);
  return true;
}

// Gives `value`, which holds the key's type already, the raw value; false if the types differ.
bool convert(const RawValue& raw, ConfigValue& value) {
  const auto as_string = [](const RawValue& element, std::string& word) {
    const auto* found = std::get_if<std::string>(&element.value);
    if (found != nullptr) word = *found;
    return found != nullptr;
  };
  if (std::holds_alternative<std::vector<std::string>>(value)) {
    return convert_list<std::string>(raw, as_string, value);
  }
  if (std::holds_alternative<std::vector<double>>(value)) {
    return convert_list<double>(raw, as_number, value);
  }
  if (auto* number = std::get_if<double>(&value)) return as_number(raw, *number);
  if (auto* word = std::get_if<std::string>(&value)) return as_string(raw, *word);
  if (const auto* integer = std::get_if<int64_t>(&raw.value)) {
    if (!std::holds_alternative<int64_t>(value)) return false;
    value = *integer;
    return true;
  }
  const auto* flag = std::get_if<bool>(&raw.value);
  if (flag == nullptr || !std::holds_alternative<bool>(value)) return false;
  value = *flag;
  return true;
}

void check_value(const ConfigKey& key, const RawSetting& setting, const ConfigValue& value) {
  const auto fail = [&](const std::string& allowed) {
    throw UserError(text(setting.where, ": ", key.name, " = ", setting.value.written,
                         "; it must be ", allowed, key.unit.empty() ? "" : " " + key.unit));
  };
  const auto check_number = [&](double number) {
    if (key.bounds.contain(number)) return;
    const std::string bounds = key.bounds.describe();
    fail(bounds.empty() ? "finite" : bounds);
  };
  if (const auto* integer = std::get_if<int64_t>(&value)) {
    check_number(static_cast<double>(*integer));
  } else if (const auto* number = std::get_if<double>(&value)) {
    check_number(*number);
  } else if (const auto* list = std::get_if<std::vector<double>>(&value)) {
    if (key.length >= 0 && static_cast<int64_t>(list->size()) != key.length) {
      fail(text("a list of ", key.length, " numbers"));
    }
    for (const double element : *list) check_number(element);
  } else if (const auto* word = std::get_if<std::string>(&value); word && !key.choices.empty()) {
    if (std::find(key.choices.begin(), key.choices.end(), *word) == key.choices.end()) {
      std::string allowed = "one of";
      for (const std::string& choice : key.choices) allowed += " " + toml_quoted(choice);
      fail(allowed + (key.automatic ? " \"auto\"" : ""));
    }
  }
}

// No path or name can hold a NUL: the system would see the part before it.
void check_words(const ConfigKey& key, const RawSetting& setting, const ConfigValue& value) {
  const auto check = [&](const std::string& word) {
    if (word.find('\0') == std::string::npos) return;
    throw UserError(text(setting.where, ": ", key.name, " holds a NUL character; leave it out"));
  };
  if (const auto* word = std::get_if<std::string>(&value)) check(*word);
  if (const auto* words = std::get_if<std::vector<std::string>>(&value)) {
    for (const std::string& word : *words) check(word);
  }
}

bool begins_like_a_number(const std::string& written) {
  const size_t first = written.find_first_not_of("+-[ ");
  return first != std::string::npos && written[first] >= '0' && written[first] <= '9';
}

RawSetting parse_override(const std::string& argument) {
  const size_t equals = argument.find('=');
  if (!argument.starts_with("--") || equals == std::string::npos || equals <= 2) {
    throw UserError(text(argument, ": an override reads --section.key=value"));
  }
  RawSetting setting;
  setting.name = argument.substr(2, equals - 2);
  setting.origin = "command line";
  setting.where = argument;
  const ConfigKey* key = find_key(setting.name);
  if (key == nullptr) fail_unknown(setting);
  const std::string written = argument.substr(equals + 1);
  const std::string type = key->type_name();
  const bool bare_string = type == "string" && !written.starts_with('"');
  const bool bare_element = type == "list of strings" && !written.starts_with('[');
  const std::string element = bare_element ? "[" + toml_quoted(written) + "]" : written;
  if (!bare_string) {
    const std::string fault = read_toml_value(element, setting.value);
    if (fault.empty()) return setting;
    // A number that TOML cannot hold is not meant as a word.
    if (begins_like_a_number(written)) {
      throw UserError(text(argument, ": ", key->name, " takes: ", type, "; ", fault));
    }
  }
  if (!read_toml_value(toml_quoted(written), setting.value).empty()) {
    throw UserError(text(argument, ": the value is not valid UTF-8"));
  }
  return setting;
}

std::vector<RawSetting> parse_overrides(const std::vector<std::string>& arguments) {
  std::vector<RawSetting> settings;
  for (const std::string& argument : arguments) {
    RawSetting setting = parse_override(argument);
    for (const RawSetting& earlier : settings) {
      if (earlier.name != setting.name) continue;
      throw UserError(text(argument, ": ", setting.name, " is given twice, before as ",
                           earlier.where, "; leave one of them out"));
    }
    settings.push_back(std::move(setting));
  }
  return settings;
}

class Loader {
 public:
  explicit Loader(const Surroundings& around) : around_(around) {
    for (const ConfigKey& key : config_keys()) {
      loaded_.settings.push_back({&key, key.initial(), "default", false});
      is_auto_.push_back(static_cast<bool>(key.automatic));
    }
  }

  void apply(const RawSetting& raw) {
    const ConfigKey* key = find_key(raw.name);
    if (key == nullptr) fail_unknown(raw);
    const auto index = static_cast<size_t>(key - config_keys().data());
    Setting& setting = loaded_.settings[index];
    const auto* word = std::get_if<std::string>(&raw.value.value);
    is_auto_[index] = key->automatic && word != nullptr && *word == "auto";
    if (is_auto_[index]) {
      setting = {key, key->initial(), raw.origin, false};
      return;
    }
    ConfigValue value = key->initial();
    if (!convert(raw.value, value)) fail_type(*key, raw);
    check_value(*key, raw, value);
    check_words(*key, raw, value);
    setting = {key, std::move(value), raw.origin, true};
  }

  LoadedConfig finish(const std::string& source) {
    loaded_.source = source;
    for (const Setting& setting : loaded_.settings) {
      setting.key->set(loaded_.config, setting.value);
    }
    // In table order: a rule reads only keys without rules and keys above its own.
    for (size_t i = 0; i < loaded_.settings.size(); ++i) {
      if (!is_auto_[i]) continue;
      Setting& setting = loaded_.settings[i];
      AutoChoice choice = setting.key->automatic(loaded_.config, around_);
      setting.value = std::move(choice.value);
      setting.origin = "auto: " + choice.reason;
      setting.is_auto = true;
      setting.key->set(loaded_.config, setting.value);
    }
    check_contradictions(loaded_, around_);
    return std::move(loaded_);
  }

 private:
  Surroundings around_;
  LoadedConfig loaded_;
  std::vector<bool> is_auto_;
};

void check_sections(const RawDocument& document) {
  for (const auto& [name, where] : document.sections) {
    const std::string prefix = name + ".";
    const bool known = std::any_of(config_keys().begin(), config_keys().end(),
                                   [&](const auto& key) { return key.name.starts_with(prefix); });
    // A table with keys is reported by its first unknown key, which names the nearest.
    const bool has_keys =
        std::any_of(document.settings.begin(), document.settings.end(),
                    [&](const auto& setting) { return setting.name.starts_with(prefix); });
    if (!known && !has_keys) {
      std::vector<std::string> names;
      for (const auto& [section, keys] : sections()) names.push_back(section);
      throw UserError(text(where, ": unknown section [", name, "]; nearest: [",
                           nearest_name(name, names), "]"));
    }
  }
}

enum class Print { kSaved, kAnnotated, kChanged };

std::string write_toml(const LoadedConfig& loaded, Print print) {
  const bool annotate = print != Print::kSaved;
  std::string result;
  std::string section;
  for (const Setting& setting : loaded.settings) {
    if (print == Print::kChanged && !setting.differs_from_default()) continue;
    const std::string& name = setting.key->name;
    if (section_of(name) != section) {
      section = section_of(name);
      result += (result.empty() ? "[" : "\n[") + section + "]\n";
    }
    const bool keep_auto = !annotate && setting.is_auto && setting.key->of_machine;
    const std::string value = keep_auto ? toml_quoted("auto") : toml_text(setting.value);
    std::string line = name.substr(section.size() + 1) + " = " + value;
    if (annotate) {
      constexpr size_t kCommentColumn = 44;
      line.resize(std::max(line.size() + 2, kCommentColumn), ' ');
      line += "# " + setting.origin;
    }
    result += line + "\n";
  }
  return result;
}

// A folder that was given where its configuration, or one that names it, belongs.
std::string describe_folder(const std::filesystem::path& folder) {
  const auto has = [](const std::filesystem::path& path) {
    std::error_code ignored;
    return std::filesystem::is_regular_file(path, ignored);
  };
  const auto config_of = [](const std::filesystem::path& run) {
    return (run / "config.toml").lexically_normal().string();
  };
  if (has(folder / "config.toml")) {
    return text("it is the folder of a run; give the run's configuration, ", config_of(folder));
  }
  if (has(folder / "manifest.json") && has(folder / ".." / "config.toml")) {
    return text("it is a checkpoint; give its run's configuration, ", config_of(folder / ".."),
                ": training goes on from the latest checkpoint, and eval takes another one as ",
                "--checkpoint ", folder.string());
  }
  if (has(folder / "config.json")) {
    return text("it is a model folder; give a TOML file with model.path = \"", folder.string(),
                "\" in it");
  }
  return "it is a folder; give a TOML file, such as configs/demo.toml";
}

void check_configuration_file(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto fail = [&](const std::string& reason) {
    throw UserError(text("cannot read the configuration ", path.string(), ": ", reason));
  };
  if (!std::filesystem::exists(path, ignored)) fail("no such file");
  if (std::filesystem::is_directory(path, ignored)) fail(describe_folder(path));
}

}  // namespace

const Setting& LoadedConfig::setting(std::string_view name) const {
  for (const Setting& candidate : settings) {
    if (candidate.key->name == name) return candidate;
  }
  throw InternalError(text("no key ", name));
}

std::string LoadedConfig::quote(std::string_view name) const {
  const Setting& found = setting(name);
  return text(name, " = ", toml_text(found.value), " (", found.origin, ")");
}

std::string LoadedConfig::cite(std::string_view name) const {
  return text(name, " (", setting(name).origin, ")");
}

std::string LoadedConfig::toml() const {
  return write_toml(*this, Print::kSaved);
}

std::string LoadedConfig::annotated_toml() const {
  return write_toml(*this, Print::kAnnotated);
}

std::string LoadedConfig::changed_toml() const {
  return write_toml(*this, Print::kChanged);
}

bool Setting::differs_from_default() const {
  return explicit_value && (key->automatic || value != key->initial());
}

std::string LoadedConfig::hash() const {
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx",
                static_cast<unsigned long long>(hash_bytes(toml())));
  return digits.data();
}

LoadedConfig parse_run_config(std::string_view source, const std::string& origin,
                              const std::vector<std::string>& overrides,
                              const Surroundings& around) {
  const RawDocument document = read_toml(source, origin);
  Loader loader(around);
  for (const RawSetting& setting : document.settings) loader.apply(setting);
  check_sections(document);
  for (const RawSetting& setting : parse_overrides(overrides)) loader.apply(setting);
  return loader.finish(origin);
}

LoadedConfig load_run_config(const std::filesystem::path& path,
                             const std::vector<std::string>& overrides,
                             const Surroundings& around) {
  check_configuration_file(path);
  const std::string content = read_text(path);
  if (content.empty() && overrides.empty()) {
    throw UserError(text("cannot read the configuration ", path.string(),
                         ": it is empty; give a TOML file, such as configs/demo.toml"));
  }
  return parse_run_config(content, path.string(), overrides, around);
}

void require_training_data(const LoadedConfig& loaded) {
  if (loaded.config.data.train.empty()) {
    throw UserError(text("no training documents in ", loaded.source,
                         ": set data.train to files, folders or globs, such as "
                         "train = [\"docs/*.txt\"]"));
  }
}

}  // namespace longspan
