// Hugging Face configurations of the hybrid families, read and written. Private to spec/.
//
//   glm5_next      sizes in text_config beside an image part, or all at the top of the file; some
//                  serving programs call it glm53_flash
//   kimi_linear    all at the top; its lists of layers count from 1
//
// Where a file says a thing twice (layer_types and the lists in linear_attn_config), the two must
// agree. Quantised weights are accepted for glm5_next in the form of its FP8 release.
// Pure functions; any thread.
#pragma once

#include <string_view>

#include "formats/json.h"
#include "spec/model_spec.h"

namespace longspan {

inline constexpr std::string_view kHybridModelTypes = "glm5_next, glm53_flash, kimi_linear";
bool is_hybrid_model_type(std::string_view model_type);

// Checked; without hf_config.
ModelSpec parse_hf_hybrid(const Json& config, const std::string& origin);

// A complete configuration from the values alone.
Json hf_hybrid_config(const ModelSpec& spec);

// The object that the text model's keys stand in if it is not the file's own; else nullptr.
Json* hf_text_part(Json& config);

}  // namespace longspan
