// What hf_hybrid.cpp asks of each hybrid family, and what the families share. Private to spec/.
//
// Why apart: each family spells its configuration in its own way; one file each reads and writes
// it.
//
// Pure functions; any thread.
#pragma once

#include "spec/hf_fields.h"
#include "spec/hf_layers.h"
#include "spec/model_spec.h"

namespace longspan {

ModelSpec parse_glm(const Json& config, const std::string& origin);
Json glm_config(const ModelSpec& spec);
ModelSpec parse_kimi(const Json& config, const std::string& origin);
Json kimi_config(const ModelSpec& spec);

// Sizes that both families spell alike; layer kinds, linear attention, experts are still to come.
void read_common_sizes(const JsonFields& fields, ModelSpec& spec);
// num_heads, head_dim and conv_taps, from linear_attn_config or from the keys that transformers
// writes; they must agree. What neither gives keeps its value.
void read_linear_attention(const JsonFields& fields, LinearAttentionSpec& linear);
// num_heads, ranks and widths of latent attention.
void read_latent_attention(const JsonFields& fields, ModelSpec& spec);

void write_common(const ModelSpec& spec, Json& config);

// A key whose value is implied by others, if it is there.
void check_implied(const JsonFields& fields, const char* key, int64_t implied, const char* why);

}  // namespace longspan
