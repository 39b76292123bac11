// What a model is: its family and sizes, as longspan needs them. Read from a Hugging Face
// config.json (spec/hf_config.h) or a built-in preset (spec/presets.h); everything about parameters
// follows from it (spec/parameter_table.h), and so do FLOPs (spec/flops.h).
//
//   const ModelSpec spec = load_hf_config("models/tiny");
//   const int64_t rows_of_q = spec.query_width();    // num_query_heads * head_dim
//
// Both families are pre-norm decoders: RMS norm, grouped-query attention with rotary embedding,
// SwiGLU, no biases; qwen3 also normalises each query and key head. A plain value without knowledge
// of ranks or devices; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "spec/rope.h"

namespace longspan {

enum class ModelFamily { kLlama, kQwen3 };
// As `model_type` spells it: "llama", "qwen3".
std::string_view model_family_name(ModelFamily family);

struct ModelSpec {
  ModelFamily family = ModelFamily::kLlama;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_query_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  bool tied_embeddings = false;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  RopeSpec rope;
  // What the stored weights are said to be ("bfloat16"); empty if the configuration does not say.
  std::string weight_dtype;
  // The config.json this was read from, byte for byte, so that an export carries every key on.
  // Empty for a preset.
  std::string hf_config;

  bool has_head_norms() const { return family == ModelFamily::kQwen3; }
  int64_t query_width() const { return num_query_heads * head_dim; }
  int64_t kv_width() const { return num_kv_heads * head_dim; }
  int64_t query_heads_per_kv_head() const { return num_query_heads / num_kv_heads; }
};

// UserError, beginning with `origin`, if a size is not positive, heads do not divide, or the head
// width is odd.
void check_model_spec(const ModelSpec& spec, const std::string& origin);

// The first key by which two models compute differently, for messages: "rms_norm_eps is 1e-06, not
// 1e-05". Empty if weights of the one are weights of the other and give the same results.
std::string first_difference(const ModelSpec& spec, const ModelSpec& other);

}  // namespace longspan
