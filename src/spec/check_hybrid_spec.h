// The hybrid's part of check_model_spec and first_difference. Private to spec/; pure functions.
#pragma once

#include <string>

#include "spec/model_spec.h"

namespace longspan {

void check_hybrid_spec(const ModelSpec& spec, const std::string& origin);
std::string first_hybrid_difference(const ModelSpec& spec, const ModelSpec& other);

}  // namespace longspan
