#include "spec/model_spec.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/check.h"
#include "spec/check_hybrid_spec.h"

namespace longspan {

std::string_view model_family_name(ModelFamily family) {
  switch (family) {
    case ModelFamily::kLlama:
      return "llama";
    case ModelFamily::kQwen3:
      return "qwen3";
    case ModelFamily::kGlm5Next:
      return "glm5_next";
    case ModelFamily::kKimiLinear:
      return "kimi_linear";
  }
  throw InternalError("unknown model family");
}

LayerKind ModelSpec::layer_kind(int64_t layer) const {
  return is_hybrid() ? layer_kinds.at(static_cast<size_t>(layer)) : LayerKind{};
}

int64_t ModelSpec::count_layers(MixKind mix) const {
  if (!is_hybrid()) return mix == MixKind::kAttention ? num_layers : 0;
  return std::count_if(layer_kinds.begin(), layer_kinds.end(),
                       [mix](const LayerKind& kind) { return kind.mix == mix; });
}

int64_t ModelSpec::count_expert_layers() const {
  return std::count_if(layer_kinds.begin(), layer_kinds.end(),
                       [](const LayerKind& kind) { return kind.has_experts; });
}

void check_model_spec(const ModelSpec& spec, const std::string& origin) {
  // With these limits no product that counts parameters leaves 64 bits.
  constexpr int64_t kWidth = int64_t{1} << 22;
  constexpr int64_t kLayers = int64_t{1} << 16;
  constexpr int64_t kCount = int64_t{1} << 31;
  const std::tuple<const char*, int64_t, int64_t> sizes[] = {
      {"vocab_size", spec.vocab_size, kCount},
      {"hidden_size", spec.hidden_size, kWidth},
      {"intermediate_size", spec.intermediate_size, kWidth},
      {"num_hidden_layers", spec.num_layers, kLayers},
      {"num_attention_heads", spec.num_query_heads, kWidth},
      {"num_key_value_heads", spec.num_kv_heads, kWidth},
      {"head_dim", spec.head_dim, kWidth},
      {"num_attention_heads x head_dim", spec.query_width(), kWidth},
      {"max_position_embeddings", spec.max_position_embeddings, kCount},
  };
  for (const auto& [name, value, limit] : sizes) {
    if (value < 1 || value > limit) {
      throw UserError(text(origin, ": ", name, " = ", value, "; it must be from 1 to ", limit));
    }
  }
  if (spec.num_query_heads % spec.num_kv_heads != 0) {
    throw UserError(text(origin, ": num_attention_heads = ", spec.num_query_heads,
                         " is not a multiple of num_key_value_heads = ", spec.num_kv_heads));
  }
  if (!spec.is_hybrid() && spec.head_dim % 2 != 0) {
    throw UserError(text(origin, ": head_dim = ", spec.head_dim,
                         " is odd; rotary embedding turns pairs of values"));
  }
  if (!(spec.rms_norm_eps > 0) || !std::isfinite(spec.rms_norm_eps)) {
    throw UserError(text(origin, ": rms_norm_eps = ", spec.rms_norm_eps, "; it must be above 0"));
  }
  if (!(spec.initializer_range >= 0) || !std::isfinite(spec.initializer_range)) {
    throw UserError(text(origin, ": initializer_range = ", spec.initializer_range,
                         "; it must not be negative"));
  }
  if (spec.is_hybrid()) check_hybrid_spec(spec, origin);
}

std::string first_difference(const ModelSpec& spec, const ModelSpec& other) {
  std::string difference;
  const auto compare = [&](const char* key, const auto& value, const auto& other_value) {
    if (!difference.empty() || value == other_value) return;
    difference = text(key, " is ", value, ", not ", other_value);
  };
  compare("model_type", model_family_name(spec.family), model_family_name(other.family));
  compare("vocab_size", spec.vocab_size, other.vocab_size);
  compare("hidden_size", spec.hidden_size, other.hidden_size);
  compare("intermediate_size", spec.intermediate_size, other.intermediate_size);
  compare("num_hidden_layers", spec.num_layers, other.num_layers);
  compare("num_attention_heads", spec.num_query_heads, other.num_query_heads);
  compare("num_key_value_heads", spec.num_kv_heads, other.num_kv_heads);
  compare("head_dim", spec.head_dim, other.head_dim);
  const auto word = [](bool value) { return value ? "true" : "false"; };
  compare("tie_word_embeddings", std::string_view(word(spec.tied_embeddings)),
          std::string_view(word(other.tied_embeddings)));
  compare("rms_norm_eps", spec.rms_norm_eps, other.rms_norm_eps);
  compare("rope_theta", spec.rope.theta, other.rope.theta);
  compare("rope_type", rope_type_name(spec.rope.type), rope_type_name(other.rope.type));
  compare("rope factor", spec.rope.factor, other.rope.factor);
  if (difference.empty() && spec.rope != other.rope) difference = "the rope parameters differ";
  if (difference.empty()) difference = first_hybrid_difference(spec, other);
  return difference;
}

}  // namespace longspan
