// Built-in model shapes, for trying things without a model folder and for planning.
//
//   const ModelSpec spec = preset_spec("llama_tiny");     // '-' may stand for '_'
//
// llama_tiny, qwen3_tiny   4 layers x 256 over bytes: 256 values and an end-of-document token
// nucleotide_tiny          4 layers x 256 over A C G T N and an end-of-document token
// llama_demo               2 layers x 64 over bytes, tied: what make demo trains
// bench_llama_4x256        the model of the speed comparison with transformers
// llama_8b, llama_34b      shapes for the planner and the simulator
// glm53_flash              GLM-5.3-Flash, 313 billion parameters: for the planner and the simulator
// glm53_flash_mini         its widths with 4 layers and 16 experts: trains on one H200
// glm53_flash_tiny         4 layers x 128 of the same kinds over bytes
// kimi_linear_tiny         4 layers x 128 of Kimi-Linear over bytes
//
// Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "spec/model_spec.h"

namespace longspan {

// UserError that lists the names if `name` is none of them.
ModelSpec preset_spec(std::string_view name);

std::vector<std::string> preset_names();

}  // namespace longspan
