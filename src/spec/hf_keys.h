// What each key of a Hugging Face configuration means to longspan: read, refused unless it has the
// one value that is implemented, or known to be irrelevant for training.
//
//   check_hf_keys(config, kPlainKeys, origin);
//
// Why a list of the irrelevant ones: a key that nobody here has heard of may well change what the
// model computes, and a model trained without it would be wrong in silence. Private to spec/; pure
// function.
#pragma once

#include <span>
#include <string>

#include "formats/json.h"

namespace longspan {

// A key with the one value (beside null) that is implemented, as JSON, and what others would mean.
struct FixedKey {
  const char* key;
  const char* value;
  const char* feature;
};

// Beside keys that are irrelevant in every configuration.
struct KeyRules {
  std::span<const char* const> read;
  std::span<const FixedKey> fixed;
  std::span<const char* const> irrelevant;
};

// Of the families without parts of their own, read by hf_config.cpp and hf_rope.cpp.
extern const KeyRules kPlainKeys;

// UserError at the first key that would change the mathematics, or that is not known. `config` is
// the object that the rules are for.
void check_hf_keys(const Json& config, const KeyRules& rules, const std::string& origin);

}  // namespace longspan
