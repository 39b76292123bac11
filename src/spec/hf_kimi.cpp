// kimi_linear: keys, and values that transformers gives to those that a file leaves out.
#include <array>
#include <optional>

#include "spec/hf_hybrid_family.h"
#include "spec/hf_keys.h"

namespace longspan {
namespace {

constexpr std::array kRead = {
    "architectures",
    "dtype",
    "first_k_dense_replace",
    "hidden_size",
    "initializer_range",
    "intermediate_size",
    "kv_lora_rank",
    "layer_types",
    "linear_attn_config",
    "linear_conv_kernel_dim",
    "linear_head_dim",
    "linear_num_heads",
    "max_position_embeddings",
    "mlp_layer_types",
    "model_max_length",
    "model_type",
    "moe_intermediate_size",
    "n_shared_experts",
    "num_attention_heads",
    "num_experts",
    "num_experts_per_tok",
    "num_experts_per_token",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_local_experts",
    "num_shared_experts",
    "q_lora_rank",
    "qk_head_dim",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "rms_norm_eps",
    "routed_scaling_factor",
    "torch_dtype",
    "v_head_dim",
    "vocab_size",
};
constexpr std::array kFixed = {
    FixedKey{"attention_bias", "false", "biases in attention"},
    FixedKey{"attention_dropout", "0.0", "dropout"},
    FixedKey{"hidden_act", "\"silu\"", "another activation"},
    FixedKey{"mla_use_nope", "true", "rotary embedding"},
    FixedKey{"moe_layer_freq", "1", "experts in some layers only"},
    FixedKey{"moe_renormalize", "true", "weights of experts that are not normalised"},
    FixedKey{"moe_router_activation_func", "\"sigmoid\"", "another score of experts"},
    FixedKey{"n_group", "1", "groups of experts"},
    FixedKey{"norm_topk_prob", "true", "weights of experts that are not normalised"},
    FixedKey{"num_expert_group", "1", "groups of experts"},
    FixedKey{"num_nextn_predict_layers", "0", "layers that predict further tokens"},
    FixedKey{"pretraining_tp", "1", "products sliced as in pre-training"},
    FixedKey{"quantization_config", "null", "quantised weights"},
    FixedKey{"rope_parameters", "null", "rotary embedding"},
    FixedKey{"rope_scaling", "null", "rotary embedding"},
    FixedKey{"tie_word_embeddings", "false", "a tied head"},
    FixedKey{"topk_group", "1", "groups of experts"},
};
// The release names its own code in auto_map; transformers has the same model built in. head_dim is
// no width of any head, and rope_theta has no meaning without rotary embedding.
constexpr std::array kIrrelevantHere = {"auto_map", "head_dim", "rope_theta", "use_grouped_topk"};

// transformers leaves the norms over latents at the eps of the class, whatever rms_norm_eps says.
constexpr double kLatentNormEps = 1e-6;

LayerListRules list_rules(int64_t num_layers) {
  LayerListRules rules{.attention_name = "full_attention",
                       .attention_kind = MixKind::kAttention,
                       .first_layer = 1,
                       .default_kinds = {},
                       .default_dense_layers = 1};
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    rules.default_kinds.push_back(layer > 0 && layer % 4 == 0 ? MixKind::kAttention
                                                              : MixKind::kLinearAttention);
  }
  return rules;
}

void check_linear_keys(const JsonFields& fields) {
  static constexpr std::array kLinearRead = {"full_attn_layers", "head_dim", "kda_layers",
                                             "num_heads", "short_conv_kernel_size"};
  static constexpr std::array kLinearFixed = {
      FixedKey{"gate_lower_bound", "null", "a bounded decay in this family"},
  };
  const Json* object = fields.find("linear_attn_config");
  if (object == nullptr) return;
  check_hf_keys(*object, {kLinearRead, kLinearFixed, {}}, fields.origin() + ": linear_attn_config");
}

}  // namespace

ModelSpec parse_kimi(const Json& config, const std::string& origin) {
  const JsonFields fields(config, origin);
  const Json* names = fields.find("architectures");
  if (names != nullptr && *names != Json::array({"KimiLinearForCausalLM"})) {
    fields.fail("architectures", *names, "[\"KimiLinearForCausalLM\"]");
  }
  check_hf_keys(config, {kRead, kFixed, kIrrelevantHere}, origin);
  ModelSpec spec;
  spec.family = ModelFamily::kKimiLinear;
  read_common_sizes(fields, spec);
  spec.max_position_embeddings =
      fields.integer("model_max_length", "max_position_embeddings").value_or(1 << 20);
  read_latent_attention(fields, spec);
  LatentAttentionSpec& mla = spec.latent_attention;
  mla.q_lora_rank = fields.integer("q_lora_rank").value_or(0);
  if (fields.find("q_lora_rank") != nullptr && mla.q_lora_rank < 1) {
    fields.fail("q_lora_rank", *fields.find("q_lora_rank"), "null, or at least 1");
  }
  mla.rope_dim = fields.required_integer("qk_rope_head_dim");
  mla.norm_eps = kLatentNormEps;
  spec.head_dim = mla.qk_dim();
  check_implied(fields, "qk_head_dim", spec.head_dim, "qk_nope_head_dim + qk_rope_head_dim");
  spec.linear_attention = {.num_heads = 32, .head_dim = 128, .conv_taps = 4};
  spec.linear_attention.gate = DecayGateKind::kSoftplus;
  read_linear_attention(fields, spec.linear_attention);
  check_linear_keys(fields);
  spec.experts = {
      .num_experts = fields.integer("num_experts", "num_local_experts").value_or(256),
      .top_k = fields.integer("num_experts_per_token", "num_experts_per_tok").value_or(8),
      .num_shared = fields.integer("num_shared_experts", "n_shared_experts").value_or(1),
      .width = fields.required_integer("moe_intermediate_size"),
      .route_scale = fields.number("routed_scaling_factor", 2.446)};
  spec.weight_dtype = fields.string(dtype_key(config)).value_or("");
  spec.layer_kinds = read_layer_kinds(fields, spec.num_layers, list_rules(spec.num_layers));
  return spec;
}

Json kimi_config(const ModelSpec& spec) {
  Json config;
  config["architectures"] = {"KimiLinearForCausalLM"};
  config["model_type"] = "kimi_linear";
  write_common(spec, config);
  write_layer_kinds(spec, list_rules(spec.num_layers), config);
  const int64_t q_rank = spec.latent_attention.q_lora_rank;
  config["model_max_length"] = spec.max_position_embeddings;
  config["q_lora_rank"] = q_rank > 0 ? Json(q_rank) : Json();
  config["num_experts"] = spec.experts.num_experts;
  config["num_experts_per_token"] = spec.experts.top_k;
  config["num_shared_experts"] = spec.experts.num_shared;
  config["num_expert_group"] = 1;
  config["moe_renormalize"] = true;
  config["moe_router_activation_func"] = "sigmoid";
  return config;
}

}  // namespace longspan
