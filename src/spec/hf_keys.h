// What each key of a Hugging Face configuration means to longspan: read, refused unless off, or
// known to be irrelevant for training.
//
// Why a list of the irrelevant ones: a key that nobody here has heard of may well change what the
// model computes, and a model trained without it would be wrong in silence. Private to spec/; pure
// function.
#pragma once

#include <string>

#include "formats/json.h"

namespace longspan {

// UserError at the first key that would change the mathematics, or that is not known. `config` is
// the whole object of a supported family.
void check_hf_keys(const Json& config, const std::string& origin);

}  // namespace longspan
