// The rotary part of a Hugging Face configuration, in all its spellings. Private to spec/.
//
//   transformers 4   "rope_theta": 5e5, "rope_scaling": {"rope_type" or "type": "llama3", ...}
//   transformers 5   "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, ...}, or that
//                    under the name of the layer type
#pragma once

#include <string>

#include "formats/json.h"
#include "spec/rope.h"

namespace longspan {

// `max_position_embeddings` stands in for an original length that is not given.
RopeSpec parse_hf_rope(const Json& config, int64_t max_position_embeddings,
                       const std::string& origin);

// The object that transformers 5 calls rope_parameters.
Json hf_rope_parameters(const RopeSpec& rope);

}  // namespace longspan
