// What a model is: its family and sizes, as longspan needs them. Read from a Hugging Face
// config.json (spec/hf_config.h) or a built-in preset (spec/presets.h); everything about parameters
// follows from it (spec/parameter_table.h), and so do FLOPs (spec/flops.h).
//
//   const ModelSpec spec = load_hf_config("models/tiny");
//   const int64_t rows_of_q = spec.query_width();    // num_query_heads * head_dim
//
// All families are pre-norm decoders with RMS norm, SwiGLU and no biases. llama and qwen3 have
// grouped-query attention with rotary embedding; qwen3 also normalises each query and key head. The
// hybrids, glm5_next and kimi_linear, have no positions: layers of linear attention alternate with
// layers of latent attention, and most feed-forward parts are experts (spec/hybrid_spec.h). A plain
// value without knowledge of ranks or devices; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "spec/hybrid_spec.h"
#include "spec/rope.h"

namespace longspan {

enum class ModelFamily { kLlama, kQwen3, kGlm5Next, kKimiLinear };
// As `model_type` spells it: "llama", "qwen3", "glm5_next", "kimi_linear".
std::string_view model_family_name(ModelFamily family);

struct ModelSpec {
  ModelFamily family = ModelFamily::kLlama;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  // of a dense feed-forward part
  int64_t num_layers = 0;
  int64_t num_query_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;  // of queries and keys
  int64_t max_position_embeddings = 0;
  bool tied_embeddings = false;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  RopeSpec rope;  // of llama and qwen3
  // What the stored weights are said to be ("bfloat16"); empty if the configuration does not say.
  std::string weight_dtype;
  // The config.json this was read from, byte for byte, so that an export carries every key on.
  // Empty for a preset.
  std::string hf_config;

  // Of hybrids. One kind for each layer; the other families have none, see layer_kind.
  std::vector<LayerKind> layer_kinds;
  LinearAttentionSpec linear_attention;
  LatentAttentionSpec latent_attention;
  IndexSpec index;
  ExpertSpec experts;
  HyperSpec hyper;
  // Every SwiGLU clamps its gate to at most this, its other factor to both sides; 0: no clamp.
  double swiglu_limit = 0;
  // Layers behind the last one that predict further tokens: stored, but neither run nor trained.
  int64_t prediction_layers = 0;

  bool is_hybrid() const { return !layer_kinds.empty(); }
  // Attention over all keys and a dense feed-forward part, where the family is no hybrid.
  LayerKind layer_kind(int64_t layer) const;
  int64_t count_layers(MixKind mix) const;
  int64_t count_expert_layers() const;

  bool has_head_norms() const { return family == ModelFamily::kQwen3; }
  int64_t query_width() const { return num_query_heads * head_dim; }
  int64_t kv_width() const { return num_kv_heads * head_dim; }
  int64_t query_heads_per_kv_head() const { return num_query_heads / num_kv_heads; }
};

// UserError, beginning with `origin`, if a size is not positive, heads do not divide, the width of
// a rotated head is odd, or parts of a hybrid do not fit together.
void check_model_spec(const ModelSpec& spec, const std::string& origin);

// The first key by which two models compute differently, for messages: "rms_norm_eps is 1e-06, not
// 1e-05". Empty if weights of the one are weights of the other and give the same results.
std::string first_difference(const ModelSpec& spec, const ModelSpec& other);

}  // namespace longspan
