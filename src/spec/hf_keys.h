// What each key of a Hugging Face configuration means to longspan: read, refused unless off, or
// known to be irrelevant. Private to spec/.
#pragma once

#include <string>

#include "formats/json.h"

namespace longspan {

// UserError at the first key that would change the mathematics, or that is not known. `config` is
// the whole object of a supported family.
void check_hf_keys(const Json& config, const std::string& origin);

}  // namespace longspan
