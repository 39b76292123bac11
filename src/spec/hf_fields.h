// Typed look-up in a JSON object, with errors that name file and field. Private to spec/.
//
//   const JsonFields fields(config, "models/tiny/config.json");
//   const int64_t width = fields.required_integer("hidden_size");
//   const double eps = fields.number("rms_norm_eps", 1e-6);      // default if absent or null
//
// Holds a reference: the object must outlive it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "formats/json.h"

namespace longspan {

class JsonFields {
 public:
  JsonFields(const Json& object, std::string origin)
      : object_(object), origin_(std::move(origin)) {}

  // nullptr if absent or null.
  const Json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  // A key that is there with the value null may mean another thing than one that is not.
  bool is_null(const char* key) const {
    const auto found = object_.find(key);
    return found != object_.end() && found->is_null();
  }

  int64_t required_integer(const char* key) const {
    const std::optional<int64_t> value = integer(key);
    if (!value) throw UserError(text(origin_, ": ", key, " is missing"));
    return *value;
  }

  std::optional<int64_t> integer(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number_integer() || (value->is_number_unsigned() && *value > kLargest)) {
      fail(key, *value, "a whole number");
    }
    return value->get<int64_t>();
  }

  std::optional<double> number(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number()) fail(key, *value, "a number");
    return value->get<double>();
  }
  double number(const char* key, double otherwise) const { return number(key).value_or(otherwise); }

  bool boolean(const char* key, bool otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) fail(key, *value, "true or false");
    return value->get<bool>();
  }

  std::optional<std::string> string(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) fail(key, *value, "a string");
    return value->get<std::string>();
  }

  // Of one of two spellings; both may stand if they agree.
  std::optional<int64_t> integer(const char* key, const char* other) const {
    const std::optional<int64_t> value = integer(key), second = integer(other);
    if (value && second && *value != *second) {
      throw UserError(text(origin_, ": ", key, " = ", *value, ", but ", other, " = ", *second,
                           "; they mean the same: remove one of them"));
    }
    return value ? value : second;
  }

  [[noreturn]] void fail(const char* key, const Json& value, const char* expected) const {
    throw UserError(text(origin_, ": ", key, " = ", value.dump(), "; it must be ", expected));
  }

  const std::string& origin() const { return origin_; }

 private:
  static constexpr uint64_t kLargest = INT64_MAX;

  const Json& object_;
  std::string origin_;
};

// transformers 4 and 5 spell the type of the weights differently.
inline const char* dtype_key(const Json& config) {
  return config.contains("torch_dtype") && !config.contains("dtype") ? "torch_dtype" : "dtype";
}

}  // namespace longspan
