#include "spec/hf_hybrid.h"

#include <optional>

#include "base/check.h"
#include "spec/hf_hybrid_family.h"

namespace longspan {
namespace {

constexpr std::string_view kKimiType = "kimi_linear";

// `key` in the object and `other` beside it must agree; `value` keeps what neither gives.
void read_twice(const JsonFields& nested, const char* key, const JsonFields& fields,
                const char* other, int64_t& value) {
  const std::optional<int64_t> inner = nested.integer(key), outer = fields.integer(other);
  if (inner && outer && *inner != *outer) {
    throw UserError(text(nested.origin(), ": ", key, " = ", *inner, ", but ", other, " = ", *outer,
                         "; they mean the same: remove one of them"));
  }
  value = inner ? *inner : outer.value_or(value);
}

}  // namespace

bool is_hybrid_model_type(std::string_view model_type) {
  return model_type == "glm5_next" || model_type == "glm53_flash" || model_type == kKimiType;
}

ModelSpec parse_hf_hybrid(const Json& config, const std::string& origin) {
  const std::string type = JsonFields(config, origin).string("model_type").value_or("");
  ModelSpec spec = type == kKimiType ? parse_kimi(config, origin) : parse_glm(config, origin);
  check_model_spec(spec, origin);
  return spec;
}

Json hf_hybrid_config(const ModelSpec& spec) {
  LONGSPAN_CHECK(spec.is_hybrid(), model_family_name(spec.family), " is no hybrid");
  return spec.family == ModelFamily::kKimiLinear ? kimi_config(spec) : glm_config(spec);
}

Json* hf_text_part(Json& config) {
  const auto found = config.find("text_config");
  return found != config.end() && found->is_object() ? &*found : nullptr;
}

void read_common_sizes(const JsonFields& fields, ModelSpec& spec) {
  spec.vocab_size = fields.required_integer("vocab_size");
  spec.hidden_size = fields.required_integer("hidden_size");
  spec.intermediate_size = fields.required_integer("intermediate_size");
  spec.num_layers = fields.required_integer("num_hidden_layers");
  constexpr int64_t kMostLayers = 4096;  // before lists of them are made
  if (spec.num_layers < 1 || spec.num_layers > kMostLayers) {
    throw UserError(text(fields.origin(), ": num_hidden_layers = ", spec.num_layers,
                         "; it must be from 1 to ", kMostLayers));
  }
  spec.rms_norm_eps = fields.number("rms_norm_eps", 1e-5);
  spec.initializer_range = fields.number("initializer_range", spec.initializer_range);
}

void read_linear_attention(const JsonFields& fields, LinearAttentionSpec& linear) {
  static const Json kNone = Json::object();
  const Json* object = fields.find("linear_attn_config");
  if (object != nullptr && !object->is_object()) {
    fields.fail("linear_attn_config", *object, "an object");
  }
  const JsonFields nested(object != nullptr ? *object : kNone,
                          fields.origin() + ": linear_attn_config");
  read_twice(nested, "num_heads", fields, "linear_num_heads", linear.num_heads);
  read_twice(nested, "head_dim", fields, "linear_head_dim", linear.head_dim);
  read_twice(nested, "short_conv_kernel_size", fields, "linear_conv_kernel_dim", linear.conv_taps);
}

void read_latent_attention(const JsonFields& fields, ModelSpec& spec) {
  LatentAttentionSpec& mla = spec.latent_attention;
  mla.num_heads = fields.required_integer("num_attention_heads");
  mla.kv_lora_rank = fields.required_integer("kv_lora_rank");
  mla.nope_dim = fields.required_integer("qk_nope_head_dim");
  mla.v_dim = fields.required_integer("v_head_dim");
  spec.num_query_heads = spec.num_kv_heads = mla.num_heads;
  check_implied(fields, "num_key_value_heads", mla.num_heads, "num_attention_heads");
}

void write_common(const ModelSpec& spec, Json& config) {
  const LatentAttentionSpec& mla = spec.latent_attention;
  const LinearAttentionSpec& linear = spec.linear_attention;
  config["vocab_size"] = spec.vocab_size;
  config["hidden_size"] = spec.hidden_size;
  config["intermediate_size"] = spec.intermediate_size;
  config["moe_intermediate_size"] = spec.experts.width;
  config["num_hidden_layers"] = spec.num_layers;
  config["num_attention_heads"] = mla.num_heads;
  config["num_key_value_heads"] = mla.num_heads;
  config["kv_lora_rank"] = mla.kv_lora_rank;
  config["qk_nope_head_dim"] = mla.nope_dim;
  config["qk_rope_head_dim"] = mla.rope_dim;
  config["v_head_dim"] = mla.v_dim;
  config["linear_attn_config"] = {{"num_heads", linear.num_heads},
                                  {"head_dim", linear.head_dim},
                                  {"short_conv_kernel_size", linear.conv_taps}};
  config["routed_scaling_factor"] = spec.experts.route_scale;
  config["hidden_act"] = "silu";
  config["initializer_range"] = spec.initializer_range;
  config["rms_norm_eps"] = spec.rms_norm_eps;
  config["tie_word_embeddings"] = false;
  config["attention_bias"] = false;
  config["attention_dropout"] = 0.0;
  config["mla_use_nope"] = true;
  config["topk_group"] = 1;
  // A byte, base or token has no further role.
  config["bos_token_id"] = nullptr;
  config["eos_token_id"] = nullptr;
  config["pad_token_id"] = nullptr;
}

void check_implied(const JsonFields& fields, const char* key, int64_t implied, const char* why) {
  const std::optional<int64_t> value = fields.integer(key);
  if (!value || *value == implied) return;
  throw UserError(
      text(fields.origin(), ": ", key, " = ", *value, " must equal ", why, " = ", implied));
}

}  // namespace longspan
