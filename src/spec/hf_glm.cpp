// glm5_next: keys, and values that transformers gives to those that a file leaves out.
#include <algorithm>
#include <array>
#include <optional>

#include "spec/hf_hybrid_family.h"
#include "spec/hf_keys.h"

namespace longspan {
namespace {

// Beside text_config.
constexpr std::array kTopRead = {"architectures",       "dtype",       "model_type",
                                 "quantization_config", "text_config", "torch_dtype"};
constexpr std::array kTopIrrelevant = {
    "image_end_token_id", "image_start_token_id", "image_token_id",       "mm_token_type_ids",
    "video_end_token_id", "video_token_id",       "video_start_token_id", "vision_config",
};
constexpr std::array kTopFixed = {
    FixedKey{"tie_word_embeddings", "false", "a tied head"},
};

constexpr std::array kTextRead = {
    "dtype",
    "first_k_dense_replace",
    "hc_eps",
    "hc_mult",
    "hc_sinkhorn_iters",
    "hidden_size",
    "index_head_dim",
    "index_kpool",
    "index_n_heads",
    "index_topk",
    "indexer_types",
    "initializer_range",
    "intermediate_size",
    "kv_lora_rank",
    "layer_types",
    "linear_attn_config",
    "linear_conv_kernel_dim",
    "linear_head_dim",
    "linear_lower_bound",
    "linear_num_heads",
    "max_position_embeddings",
    "mlp_layer_types",
    "model_type",
    "moe_intermediate_size",
    "n_routed_experts",
    "n_shared_experts",
    "num_attention_heads",
    "num_experts_per_tok",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_local_experts",
    "num_nextn_predict_layers",
    "q_lora_rank",
    "qk_head_dim",
    "qk_nope_head_dim",
    "rms_norm_eps",
    "routed_scaling_factor",
    "swiglu_limit",
    "torch_dtype",
    "v_head_dim",
    "vocab_size",
};
constexpr std::array kTextFixed = {
    FixedKey{"attention_bias", "false", "biases in attention"},
    FixedKey{"attention_dropout", "0.0", "dropout"},
    FixedKey{"head_dim", "0", "rotated parts of a head"},
    FixedKey{"hidden_act", "\"silu\"", "another activation"},
    FixedKey{"index_kpool_always_select_tail", "true", "a selection without the tail"},
    FixedKey{"index_kpool_compress", "true", "pools without learned shares"},
    FixedKey{"index_topk_freq", "1", "an index that several layers share"},
    FixedKey{"index_topk_pattern", "null", "an index that several layers share"},
    FixedKey{"mhc", "true", "a plain residual"},
    FixedKey{"mla_use_nope", "true", "rotary embedding"},
    FixedKey{"moe_layer_freq", "1", "experts in some layers only"},
    FixedKey{"moe_router_dtype", "\"float32\"", "a router in another type"},
    FixedKey{"n_group", "1", "groups of experts"},
    FixedKey{"norm_topk_prob", "true", "weights of experts that are not normalised"},
    FixedKey{"output_router_logits", "false", "a loss of the router"},
    FixedKey{"pretraining_tp", "1", "products sliced as in pre-training"},
    FixedKey{"qk_rope_head_dim", "0", "rotary embedding"},
    FixedKey{"rope_parameters", "null", "rotary embedding"},
    FixedKey{"rope_scaling", "null", "rotary embedding"},
    FixedKey{"scoring_func", "\"sigmoid\"", "another score of experts"},
    FixedKey{"tie_word_embeddings", "false", "a tied head"},
    FixedKey{"topk_group", "1", "groups of experts"},
    FixedKey{"topk_method", "\"noaux_tc\"", "another choice of experts"},
};
// rope_theta has no meaning without rotary embedding; the index has none either, and prediction
// layers are not run.
constexpr std::array kTextIrrelevant = {
    "index_share_for_mtp_iteration", "index_skip_topk_offset",
    "indexer_rope_interleave",       "rope_theta",
    "router_aux_loss_coef",
};
const KeyRules kTextKeys = {kTextRead, kTextFixed, kTextIrrelevant};

LayerListRules list_rules(int64_t num_layers) {
  LayerListRules rules{.attention_name = "deepseek_sparse_attention",
                       .attention_kind = MixKind::kSparseAttention,
                       .first_layer = 0,
                       .default_kinds = {},
                       .default_dense_layers = 3};
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    rules.default_kinds.push_back(layer % 4 == 3 ? MixKind::kSparseAttention
                                                 : MixKind::kLinearAttention);
  }
  return rules;
}

// Weights in FP8 with one scale for each 128 x 128 block; they are widened when they are read.
void check_quantization(const JsonFields& fields) {
  const Json* object = fields.find("quantization_config");
  if (object == nullptr) return;
  if (!object->is_object()) fields.fail("quantization_config", *object, "an object");
  const JsonFields nested(*object, fields.origin() + ": quantization_config");
  const auto require = [&](const char* key, const Json& only, bool may_be_absent) {
    const Json* value = nested.find(key);
    if (value == nullptr ? may_be_absent : *value == only) return;
    throw UserError(text(nested.origin(), ": ", key, " = ", value ? value->dump() : "nothing",
                         " is not implemented; only ", only.dump(), " is"));
  };
  require("quant_method", "fp8", false);
  require("fmt", "e4m3", true);
  require("weight_block_size", Json::array({128, 128}), false);
}

void check_indexer_types(const JsonFields& fields, int64_t num_layers) {
  const Json* types = fields.find("indexer_types");
  if (types == nullptr) return;
  if (!types->is_array() || static_cast<int64_t>(types->size()) != num_layers) {
    fields.fail("indexer_types", *types, "a list with an entry for each layer");
  }
  for (const Json& type : *types) {
    if (type == "full") continue;
    throw UserError(text(fields.origin(), ": indexer_types holds ", type.dump(),
                         "; only \"full\" is implemented"));
  }
}

// No bound at all means the bound -5; null means none, unless the gate is said to be safe, as it is
// by default where linear_attn_config stands.
void read_gate(const JsonFields& fields, LinearAttentionSpec& linear) {
  static const Json kNone = Json::object();
  static constexpr std::array kRead = {
      "full_attn_layers", "gate_lower_bound",      "head_dim", "kda_layers", "num_heads",
      "safe_gate",        "short_conv_kernel_size"};
  const Json* object = fields.find("linear_attn_config");
  const JsonFields nested(object != nullptr ? *object : kNone,
                          fields.origin() + ": linear_attn_config");
  if (object != nullptr) check_hf_keys(*object, {kRead, {}, {}}, nested.origin());
  const std::optional<double> inner = nested.number("gate_lower_bound");
  const std::optional<double> outer = fields.number("linear_lower_bound");
  if (inner && outer && *inner != *outer) {
    throw UserError(text(nested.origin(), ": gate_lower_bound = ", *inner,
                         ", but linear_lower_bound = ", *outer,
                         "; they mean the same: remove one of them"));
  }
  const bool is_null =
      !inner && (nested.is_null("gate_lower_bound") || fields.is_null("linear_lower_bound"));
  const bool is_safe = object != nullptr && nested.boolean("safe_gate", true);
  if (is_null && !is_safe) {
    linear.gate = DecayGateKind::kSoftplus;
    return;
  }
  linear.gate = DecayGateKind::kBounded;
  linear.gate_lower_bound = inner ? *inner : is_null ? -5.0 : outer.value_or(-5.0);
}

void read_experts(const JsonFields& fields, ExpertSpec& experts) {
  experts.num_experts = fields.integer("n_routed_experts", "num_local_experts").value_or(288);
  experts.top_k = fields.integer("num_experts_per_tok").value_or(8);
  experts.num_shared = fields.integer("n_shared_experts").value_or(1);
  experts.width = fields.required_integer("moe_intermediate_size");
  experts.route_scale = fields.number("routed_scaling_factor", 2.5);
}

ModelSpec parse_text(const Json& config, const std::string& origin) {
  const JsonFields fields(config, origin);
  ModelSpec spec;
  spec.family = ModelFamily::kGlm5Next;
  read_common_sizes(fields, spec);
  spec.max_position_embeddings = fields.integer("max_position_embeddings").value_or(1 << 20);
  read_latent_attention(fields, spec);
  spec.latent_attention.q_lora_rank = fields.required_integer("q_lora_rank");
  spec.latent_attention.norm_eps = spec.rms_norm_eps;
  spec.head_dim = spec.latent_attention.qk_dim();
  check_implied(fields, "qk_head_dim", spec.head_dim, "qk_nope_head_dim");
  spec.linear_attention = {.num_heads = 64, .head_dim = 128, .conv_taps = 4};
  read_linear_attention(fields, spec.linear_attention);
  read_gate(fields, spec.linear_attention);
  spec.index = {.num_heads = fields.integer("index_n_heads").value_or(32),
                .head_dim = fields.integer("index_head_dim").value_or(128),
                .topk = fields.integer("index_topk").value_or(2048),
                .pool = fields.integer("index_kpool").value_or(16)};
  check_indexer_types(fields, spec.num_layers);
  read_experts(fields, spec.experts);
  spec.hyper = {.streams = fields.integer("hc_mult").value_or(4),
                .sinkhorn_iterations = fields.integer("hc_sinkhorn_iters").value_or(20),
                .eps = fields.number("hc_eps", 1e-6)};
  if (spec.hyper.streams < 2) fields.fail("hc_mult", *fields.find("hc_mult"), "at least 2");
  spec.swiglu_limit = fields.number("swiglu_limit", 10.0);
  if (!(spec.swiglu_limit > 0)) {
    fields.fail("swiglu_limit", *fields.find("swiglu_limit"), "above 0");
  }
  spec.prediction_layers = fields.integer("num_nextn_predict_layers").value_or(0);
  spec.layer_kinds = read_layer_kinds(fields, spec.num_layers, list_rules(spec.num_layers));
  return spec;
}

void check_name(const JsonFields& fields, const char* key, const Json& name,
                std::initializer_list<const char*> known) {
  const bool good = std::any_of(known.begin(), known.end(),
                                [&](const char* candidate) { return name == candidate; });
  if (!good) fields.fail(key, name, text("\"", *known.begin(), "\"").c_str());
}

void check_architecture(const JsonFields& fields) {
  const Json* names = fields.find("architectures");
  if (names == nullptr) return;
  if (!names->is_array() || names->size() != 1) fields.fail("architectures", *names, "one name");
  check_name(fields, "architectures", names->front(),
             {"Glm5NextForConditionalGeneration", "Glm53FlashForConditionalGeneration"});
}

}  // namespace

ModelSpec parse_glm(const Json& config, const std::string& origin) {
  const JsonFields top(config, origin);
  check_architecture(top);
  check_quantization(top);
  const Json* part = top.find("text_config");
  if (part == nullptr) {  // all in one object
    std::vector<const char*> read(kTextRead.begin(), kTextRead.end());
    read.insert(read.end(), kTopRead.begin(), kTopRead.end());
    std::vector<const char*> irrelevant(kTextIrrelevant.begin(), kTextIrrelevant.end());
    irrelevant.insert(irrelevant.end(), kTopIrrelevant.begin(), kTopIrrelevant.end());
    check_hf_keys(config, {read, kTextFixed, irrelevant}, origin);
    ModelSpec spec = parse_text(config, origin);
    spec.weight_dtype = top.string(dtype_key(config)).value_or("");
    return spec;
  }
  if (!part->is_object()) top.fail("text_config", *part, "an object");
  check_hf_keys(config, {kTopRead, kTopFixed, kTopIrrelevant}, origin);
  const std::string inner = origin + ": text_config";
  const JsonFields fields(*part, inner);
  if (const Json* name = fields.find("model_type")) {
    check_name(fields, "model_type", *name, {"glm5_next_text", "glm53_flash_text"});
  }
  check_hf_keys(*part, kTextKeys, inner);
  ModelSpec spec = parse_text(*part, inner);
  spec.weight_dtype =
      top.string(dtype_key(config)).value_or(fields.string(dtype_key(*part)).value_or(""));
  return spec;
}

Json glm_config(const ModelSpec& spec) {
  Json part;
  part["model_type"] = "glm5_next_text";
  write_common(spec, part);
  write_layer_kinds(spec, list_rules(spec.num_layers), part);
  part["max_position_embeddings"] = spec.max_position_embeddings;
  part["q_lora_rank"] = spec.latent_attention.q_lora_rank;
  part["qk_head_dim"] = spec.latent_attention.qk_dim();
  part["head_dim"] = 0;
  const bool bounded = spec.linear_attention.gate == DecayGateKind::kBounded;
  Json& linear = part["linear_attn_config"];
  linear["gate_lower_bound"] = bounded ? Json(spec.linear_attention.gate_lower_bound) : Json();
  linear["safe_gate"] = bounded;
  part["index_n_heads"] = spec.index.num_heads;
  part["index_head_dim"] = spec.index.head_dim;
  part["index_topk"] = spec.index.topk;
  part["index_kpool"] = spec.index.pool;
  part["index_kpool_compress"] = true;
  part["index_kpool_always_select_tail"] = true;
  part["n_routed_experts"] = spec.experts.num_experts;
  part["num_experts_per_tok"] = spec.experts.top_k;
  part["n_shared_experts"] = spec.experts.num_shared;
  part["n_group"] = 1;
  part["norm_topk_prob"] = true;
  part["scoring_func"] = "sigmoid";
  part["topk_method"] = "noaux_tc";
  part["moe_router_dtype"] = "float32";
  part["swiglu_limit"] = spec.swiglu_limit;
  part["mhc"] = true;
  part["hc_mult"] = spec.hyper.streams;
  part["hc_sinkhorn_iters"] = spec.hyper.sinkhorn_iterations;
  part["hc_eps"] = spec.hyper.eps;
  part["num_nextn_predict_layers"] = spec.prediction_layers;
  Json config;
  config["architectures"] = {"Glm5NextForConditionalGeneration"};
  config["model_type"] = "glm5_next";
  config["text_config"] = part;
  // There is no model without an image part in transformers: the smallest one, which has no
  // weights here and plays no role for text.
  config["vision_config"] = {{"depth", 1},
                             {"hidden_size", 16},
                             {"num_heads", 2},
                             {"intermediate_size", 16},
                             {"projection_intermediate_size", 16},
                             {"out_hidden_size", spec.hidden_size},
                             {"image_size", 28},
                             {"patch_size", 14}};
  config["tie_word_embeddings"] = false;
  return config;
}

}  // namespace longspan
