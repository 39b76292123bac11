// Methods of a row of the key table: its texts, and finding a row by an exact or a mistyped name.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

#include "base/nearest_name.h"
#include "config/keys.h"

namespace longspan {
namespace {

constexpr int64_t kFar = 1000;  // more edits than a name has letters

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 40> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  std::string digits(buffer.data(), result.ptr);
  // TOML tells floats from integers by the point or the exponent.
  if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
  return digits;
}

// A bound as people write it: 1, 0.5, not 1.0.
std::string bound_text(double value) {
  std::string digits = float_text(value);
  if (digits.ends_with(".0")) digits.resize(digits.size() - 2);
  return digits;
}

std::string_view last_word(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}

std::string_view section_of(std::string_view name) {
  const size_t point = name.rfind('.');
  return point == std::string_view::npos ? std::string_view() : name.substr(0, point);
}

// Edits that make `to` of `from`; infinite if they are more than a third of it, another word then.
int64_t slips_between(std::string_view from, std::string_view to) {
  const int64_t edits = edit_distance(from, to);
  return 3 * edits <= std::ssize(to) ? edits : kFar;
}

int64_t distance_to(std::string_view name, const ConfigKey& key) {
  int64_t distance = slips_between(name, key.name);
  const std::string_view word = last_word(name);
  distance = std::min(distance, 2 + 2 * slips_between(word, last_word(key.name)));
  const int64_t elsewhere = section_of(name) == section_of(key.name) ? 1 : 2;
  for (const std::string& other : key.other_names) {
    distance = std::min(distance, elsewhere + 2 * slips_between(word, other));
  }
  return distance < kFar ? distance : std::numeric_limits<int64_t>::max();
}

template <typename List, typename Write>
std::string list_text(const List& list, Write write) {
  std::string result = "[";
  for (size_t i = 0; i < list.size(); ++i) {
    if (i > 0) result += ", ";
    result += write(list[i]);
  }
  return result + "]";
}

}  // namespace

bool Bounds::contain(double value) const {
  const bool low_ok = low_open ? value > low : value >= low;
  const bool high_ok = high_open ? value < high : value <= high;
  return low_ok && high_ok && std::isfinite(value);
}

std::string Bounds::describe() const {
  const bool has_low = std::isfinite(low);
  const bool has_high = std::isfinite(high);
  if (!has_low && !has_high) return "";
  if (!has_high) return (low_open ? "> " : ">= ") + bound_text(low);
  if (!has_low) return (high_open ? "< " : "<= ") + bound_text(high);
  if (!low_open && !high_open) return bound_text(low) + " .. " + bound_text(high);
  return bound_text(low) + (low_open ? " < x " : " <= x ") + (high_open ? "< " : "<= ") +
         bound_text(high);
}

std::string ConfigKey::type_name() const {
  static const std::array<const char*, 6> names = {"boolean", "integer",         "float",
                                                   "string",  "list of strings", "list of floats"};
  return names.at(initial().index());
}

std::string ConfigKey::default_text() const {
  return automatic ? toml_quoted("auto") : toml_text(initial());
}

const ConfigKey* find_key(std::string_view name) {
  for (const ConfigKey& key : config_keys()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

const ConfigKey* nearest_key(std::string_view name) {
  const ConfigKey* best = nullptr;
  int64_t best_distance = std::numeric_limits<int64_t>::max();
  for (const ConfigKey& key : config_keys()) {
    const int64_t distance = distance_to(name, key);
    if (distance >= best_distance) continue;
    best = &key;
    best_distance = distance;
  }
  return best;
}

std::string toml_quoted(std::string_view value) {
  std::string result = "\"";
  for (const char letter : value) {
    const auto byte = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      result += '\\';
      result += letter;
    } else if (byte < 0x20 || byte == 0x7f) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04x", static_cast<unsigned>(byte));
      result += escape.data();
    } else {
      result += letter;
    }
  }
  return result + "\"";
}

std::string toml_text(const ConfigValue& value) {
  struct Writer {
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(int64_t number) const { return std::to_string(number); }
    std::string operator()(double number) const { return float_text(number); }
    std::string operator()(const std::string& word) const { return toml_quoted(word); }
    std::string operator()(const std::vector<std::string>& words) const {
      return list_text(words, toml_quoted);
    }
    std::string operator()(const std::vector<double>& numbers) const {
      return list_text(numbers, float_text);
    }
  };
  return std::visit(Writer{}, value);
}

}  // namespace longspan
