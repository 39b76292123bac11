#include "config/toml_source.h"

#include <toml++/toml.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "base/error.h"

namespace longspan {
namespace {

RawValue raw_value(const toml::node& node) {
  RawValue raw;
  std::ostringstream written;
  if (const auto* flag = node.as_boolean()) {
    raw.type_name = "a boolean";
    raw.value = flag->get();
    written << *flag;
  } else if (const auto* integer = node.as_integer()) {
    raw.type_name = "an integer";
    raw.value = integer->get();
    written << *integer;
  } else if (const auto* number = node.as_floating_point()) {
    raw.type_name = "a float";
    raw.value = number->get();
    written << *number;
  } else if (const auto* word = node.as_string()) {
    raw.type_name = "a string";
    raw.value = word->get();
    written << *word;
  } else if (const auto* array = node.as_array()) {
    raw.type_name = "a list";
    std::vector<RawValue> elements;
    for (const toml::node& element : *array) elements.push_back(raw_value(element));
    raw.value = std::move(elements);
    written << *array;
  } else {
    raw.type_name = node.is_table() ? "a table" : "a date or time";
    written << raw.type_name;
  }
  raw.written = written.str();
  return raw;
}

void flatten(const toml::table& table, const std::string& prefix, const std::string& path,
             RawDocument& document, std::vector<std::pair<uint32_t, size_t>>& lines) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix + std::string(key.str());
    const uint32_t line = key.source().begin.line;
    const std::string origin = text(path, ":", line);
    if (const toml::table* inner = node.as_table(); inner != nullptr && !inner->is_inline()) {
      document.sections.emplace_back(name, origin);
      flatten(*inner, name + ".", path, document, lines);
    } else {
      lines.emplace_back(line, document.settings.size());
      document.settings.push_back({name, raw_value(node), origin, origin});
    }
  }
}

}  // namespace

RawDocument read_toml(std::string_view source, const std::string& path) {
  toml::table table;
  try {
    table = toml::parse(source, path);
  } catch (const toml::parse_error& error) {
    const toml::source_position position = error.source().begin;
    throw UserError(text(path, ":", position.line, ":", position.column,
                         ": not valid TOML: ", error.description()));
  }
  RawDocument document;
  std::vector<std::pair<uint32_t, size_t>> lines;
  flatten(table, "", path, document, lines);
  // The library sorts by name; errors should name the topmost line.
  std::stable_sort(lines.begin(), lines.end());
  std::vector<RawSetting> ordered;
  for (const auto& [line, index] : lines) ordered.push_back(std::move(document.settings[index]));
  document.settings = std::move(ordered);
  return document;
}

std::string read_toml_value(std::string_view written, RawValue& value) {
  // A line break would end the value and let the rest be read as other keys.
  if (written.find('\n') != std::string_view::npos) return "it has a line break";
  try {
    const toml::table table = toml::parse("value = " + std::string(written));
    value = raw_value(*table.get("value"));
    return "";
  } catch (const toml::parse_error& error) {
    return std::string(error.description());
  }
}

}  // namespace longspan
