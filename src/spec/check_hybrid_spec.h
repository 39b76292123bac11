// The hybrid's part of check_model_spec and first_difference. Private to spec/.
//
// Why apart: what a hybrid has beyond a plain decoder is checked and compared part by part.
//
// Pure functions; any thread.
#pragma once

#include <string>

#include "spec/model_spec.h"

namespace longspan {

void check_hybrid_spec(const ModelSpec& spec, const std::string& origin);
std::string first_hybrid_difference(const ModelSpec& spec, const ModelSpec& other);

}  // namespace longspan
