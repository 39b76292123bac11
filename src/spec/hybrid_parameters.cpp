// The layers of the hybrid families in the parameter table: names, shapes and initial values.
#include <functional>
#include <utility>

#include "base/error.h"
#include "spec/parameter_names.h"
#include "spec/parameter_table.h"

namespace longspan {
namespace {

using Shape = std::vector<int64_t>;

// What the parameters of one layer have in common, and the kinds of them.
struct LayerRows {
  std::string prefix;
  int64_t unit = 0;
  double init_std = 0;

  Parameter matrix(const std::string& name, int64_t out, int64_t in) const {
    return {.name = prefix + name, .shape = {out, in}, .unit = unit, .init_std = init_std};
  }
  // Vectors and filters: no weight decay.
  Parameter plain(const std::string& name, Shape shape, InitKind init) const {
    return {.name = prefix + name,
            .shape = std::move(shape),
            .unit = unit,
            .init = init,
            .init_std = init_std,
            .decayed = false};
  }
  Parameter norm(const std::string& name, int64_t width) const {
    return plain(name, {width}, InitKind::kOnes);
  }
  Parameter float32(const std::string& name, Shape shape, InitKind init) const {
    Parameter parameter = plain(name, std::move(shape), init);
    parameter.keep_float32 = true;
    return parameter;
  }
};

Parameter frozen(Parameter parameter) {
  parameter.trained = false;
  parameter.decayed = false;
  return parameter;
}

using Add = std::function<int64_t(Parameter)>;

// Scales last: they have three elements, and a matrix behind them would not lie at 16 bytes.
void add_hyper(const ModelSpec& spec, const LayerRows& rows, const Add& add, LayerParameters& ids) {
  const HyperSpec& hyper = spec.hyper;
  if (hyper.streams == 1) return;
  const auto fn = [&](const char* name) {
    return add(rows.matrix(name, hyper.maps(), hyper.streams * spec.hidden_size));
  };
  const auto base = [&](const char* name) {
    return add(rows.float32(name, {hyper.maps()}, InitKind::kZeros));
  };
  const auto scale = [&](const char* name) {
    return add(rows.float32(name, {3}, InitKind::kOnes));
  };
  ids.hyper_attention_fn = fn("hc_attn_fn");
  ids.hyper_ffn_fn = fn("hc_ffn_fn");
  ids.hyper_attention_base = base("hc_attn_base");
  ids.hyper_ffn_base = base("hc_ffn_base");
  ids.hyper_attention_scale = scale("hc_attn_scale");
  ids.hyper_ffn_scale = scale("hc_ffn_scale");
}

void add_linear_attention(const ModelSpec& spec, const LayerRows& rows, const Add& add,
                          LayerParameters& ids) {
  const LinearAttentionSpec& kda = spec.linear_attention;
  const int64_t hidden = spec.hidden_size;
  const int64_t width = kda.width();
  const auto filter = [&](const char* name) {
    return add(rows.plain(name, {width, 1, kda.conv_taps}, InitKind::kNormal));
  };
  ids.q_proj = add(rows.matrix("self_attn.q_proj.weight", width, hidden));
  ids.k_proj = add(rows.matrix("self_attn.k_proj.weight", width, hidden));
  ids.v_proj = add(rows.matrix("self_attn.v_proj.weight", width, hidden));
  ids.q_conv = filter("self_attn.q_conv1d.weight");
  ids.k_conv = filter("self_attn.k_conv1d.weight");
  ids.v_conv = filter("self_attn.v_conv1d.weight");
  ids.beta_proj = add(rows.matrix("self_attn.b_proj.weight", kda.num_heads, hidden));
  ids.decay_a_proj = add(rows.matrix("self_attn.f_a_proj.weight", kda.head_dim, hidden));
  ids.decay_b_proj = add(rows.matrix("self_attn.f_b_proj.weight", width, kda.head_dim));
  const bool four_axes = spec.family == ModelFamily::kKimiLinear;
  ids.decay_rate = add(rows.float32(
      "self_attn.A_log", four_axes ? Shape{1, 1, kda.num_heads, 1} : Shape{kda.num_heads},
      kda.gate == DecayGateKind::kBounded ? InitKind::kZeros : InitKind::kDecayRate));
  ids.dt_bias = add(rows.float32("self_attn.dt_bias", {width}, InitKind::kTimeStepBias));
  ids.gate_a_proj = add(rows.matrix("self_attn.g_a_proj.weight", kda.head_dim, hidden));
  ids.gate_b_proj = add(rows.matrix("self_attn.g_b_proj.weight", width, kda.head_dim));
  ids.o_norm = add(rows.norm("self_attn.o_norm.weight", kda.head_dim));
  ids.o_proj = add(rows.matrix("self_attn.o_proj.weight", hidden, width));
}

void add_latent_attention(const ModelSpec& spec, const LayerRows& rows, const Add& add,
                          LayerParameters& ids) {
  const LatentAttentionSpec& mla = spec.latent_attention;
  const int64_t hidden = spec.hidden_size;
  const int64_t query_width = mla.num_heads * mla.qk_dim();
  if (mla.q_lora_rank > 0) {
    ids.q_a_proj = add(rows.matrix("self_attn.q_a_proj.weight", mla.q_lora_rank, hidden));
    ids.q_a_norm = add(rows.norm("self_attn.q_a_layernorm.weight", mla.q_lora_rank));
    ids.q_b_proj = add(rows.matrix("self_attn.q_b_proj.weight", query_width, mla.q_lora_rank));
  } else {
    ids.q_proj = add(rows.matrix("self_attn.q_proj.weight", query_width, hidden));
  }
  ids.kv_a_proj =
      add(rows.matrix("self_attn.kv_a_proj_with_mqa.weight", mla.latent_width(), hidden));
  ids.kv_a_norm = add(rows.norm("self_attn.kv_a_layernorm.weight", mla.kv_lora_rank));
  ids.kv_b_proj = add(rows.matrix("self_attn.kv_b_proj.weight",
                                  mla.num_heads * (mla.nope_dim + mla.v_dim), mla.kv_lora_rank));
  ids.o_proj = add(rows.matrix("self_attn.o_proj.weight", hidden, mla.num_heads * mla.v_dim));
}

void add_index(const ModelSpec& spec, const LayerRows& rows, const Add& add, LayerParameters& ids) {
  const IndexSpec& index = spec.index;
  const int64_t width = index.num_heads * index.head_dim;
  const std::string at = "self_attn.indexer.";
  ids.index_q_proj =
      add(frozen(rows.matrix(at + "wq_b.weight", width, spec.latent_attention.q_lora_rank)));
  ids.index_k_proj = add(frozen(rows.matrix(at + "wk.weight", index.head_dim, spec.hidden_size)));
  ids.index_weights =
      add(frozen(rows.matrix(at + "weights_proj.weight", index.num_heads, spec.hidden_size)));
  ids.index_k_norm = add(frozen(rows.norm(at + "k_norm.weight", index.head_dim)));
  ids.index_k_norm_bias =
      add(frozen(rows.plain(at + "k_norm.bias", {index.head_dim}, InitKind::kZeros)));
  ids.index_pool_gate = add(frozen(rows.plain(
      at + "index_kpool_compress_gate", {index.head_dim, spec.hidden_size}, InitKind::kOnes)));
  ids.index_pool_bias = add(frozen(
      rows.plain(at + "index_kpool_compress_ape", {index.pool, index.head_dim}, InitKind::kZeros)));
}

void add_router_and_shared(const ModelSpec& spec, const LayerRows& rows, const Add& add,
                           LayerParameters& ids) {
  const ExpertSpec& experts = spec.experts;
  const std::string at = expert_prefix(spec.family);
  ids.router = add(rows.matrix(at + "gate.weight", experts.num_experts, spec.hidden_size));
  ids.router_bias = add(frozen(
      rows.float32(at + "gate.e_score_correction_bias", {experts.num_experts}, InitKind::kZeros)));
  const int64_t width = experts.shared_width();
  const std::string shared = at + "shared_experts.";
  ids.shared_gate = add(rows.matrix(shared + "gate_proj.weight", width, spec.hidden_size));
  ids.shared_up = add(rows.matrix(shared + "up_proj.weight", width, spec.hidden_size));
  ids.shared_down = add(rows.matrix(shared + "down_proj.weight", spec.hidden_size, width));
}

void add_dense(const ModelSpec& spec, const LayerRows& rows, const Add& add, LayerParameters& ids) {
  const int64_t width = spec.intermediate_size;
  ids.gate_proj = add(rows.matrix("mlp.gate_proj.weight", width, spec.hidden_size));
  ids.up_proj = add(rows.matrix("mlp.up_proj.weight", width, spec.hidden_size));
  ids.down_proj = add(rows.matrix("mlp.down_proj.weight", spec.hidden_size, width));
}

// The matrices of one expert on disk: gate, up, down.
struct ExpertNames {
  const char* gate;
  const char* up;
  const char* down;
};
ExpertNames expert_names(ModelFamily family) {
  if (family == ModelFamily::kKimiLinear) return {"w1", "w3", "w2"};
  return {"gate_proj", "up_proj", "down_proj"};
}

}  // namespace

LayerParameters ParameterTable::add_hybrid_layer(const ModelSpec& spec, int64_t index) {
  const LayerRows rows{layer_prefix(spec.family, index), 1 + index, spec.initializer_range};
  const Add add_row = [this](Parameter parameter) { return add(std::move(parameter)); };
  const LayerKind kind = spec.layer_kind(index);
  LayerParameters ids;
  ids.input_norm = add(rows.norm("input_layernorm.weight", spec.hidden_size));
  if (kind.mix == MixKind::kLinearAttention) {
    add_linear_attention(spec, rows, add_row, ids);
  } else {
    add_latent_attention(spec, rows, add_row, ids);
  }
  if (kind.mix == MixKind::kSparseAttention) add_index(spec, rows, add_row, ids);
  ids.post_attention_norm = add(rows.norm("post_attention_layernorm.weight", spec.hidden_size));
  if (kind.has_experts) {
    add_router_and_shared(spec, rows, add_row, ids);
  } else {
    add_dense(spec, rows, add_row, ids);
  }
  add_hyper(spec, rows, add_row, ids);
  return ids;
}

void ParameterTable::add_experts(const ModelSpec& spec, int64_t layer) {
  const int64_t total = spec.experts.num_experts;
  if (expert_group_ > total) {
    throw UserError(text("layout.expert_group = ", expert_group_, ", but a layer has only ", total,
                         " experts; choose at most ", total));
  }
  const ExpertNames names = expert_names(spec.family);
  for (int64_t block = 0; block < expert_group_; ++block) {
    const LayerRows rows{
        text(layer_prefix(spec.family, layer), expert_prefix(spec.family), "experts."), num_units(),
        spec.initializer_range};
    const Range experts{block * total / expert_group_, (block + 1) * total / expert_group_};
    const auto matrices = [&](const char* name, int64_t out, int64_t in) {
      const auto first = static_cast<int64_t>(parameters_.size());
      for (int64_t expert = experts.begin; expert < experts.end; ++expert) {
        Parameter matrix = rows.matrix(text(expert, ".", name, ".weight"), out, in);
        matrix.expert_block = block;
        add(std::move(matrix));
      }
      return first;
    };
    ExpertParameters ids{.unit = rows.unit, .experts = experts};
    ids.gate = matrices(names.gate, spec.experts.width, spec.hidden_size);
    ids.up = matrices(names.up, spec.experts.width, spec.hidden_size);
    ids.down = matrices(names.down, spec.hidden_size, spec.experts.width);
    experts_[layer].push_back(ids);
  }
}

}  // namespace longspan
