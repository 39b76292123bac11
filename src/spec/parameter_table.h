// The parameters of a model in one fixed order, with their Hugging Face names. An index into it is
// the ParameterId by which stores, layers, optimizer and checkpoints know a parameter.
//
//   const ParameterTable table(spec);
//   const LayerParameters& ids = table.layer(3);        // ids.q_proj, ids.down_proj, ...
//   table.parameters()[size_t(ids.q_proj)].name         // "model.layers.3.self_attn.q_proj.weight"
//
// A *unit* is what is gathered and reduced as one: 0 the embedding, 1 + i layer i, then the final
// norm with an untied head. A tied head is the embedding's parameter used twice. The routed experts
// of layer i stand in units of their own behind all these: one for each rank of an expert group of
// E ranks, block j of E with the experts [j n / E, (j + 1) n / E). A parameter holds one matrix of
// one expert, as on disk, and in a unit first come all gates, then all ups, then all downs:
//
//   const ExpertParameters& block = table.experts(/*layer=*/3, /*block=*/0);
//   block.gate + k         // gate matrix of expert block.experts.begin + k
//
// In plain decoders the order is that in which transformers lists the parameters of the same model.
// An immutable value; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/range.h"
#include "spec/model_spec.h"

namespace longspan {

enum class InitKind {
  kNormal,  // mean 0, deviation init_std
  kZeros,
  kOnes,
  kDecayRate,     // the logarithm of a uniform value from 1 to 16
  kTimeStepBias,  // the inverse softplus of a log-uniform value from 1e-3 to 1e-1
};

struct Parameter {
  std::string name;
  std::vector<int64_t> shape;  // row-major; matrices are [out, in]
  int64_t unit = 0;
  InitKind init = InitKind::kNormal;
  double init_std = 0;        // of kNormal
  bool decayed = true;        // weight decay: matrices, the embedding among them; norms have none
  bool trained = true;        // false: no gradient, no update
  int64_t expert_block = -1;  // which part of a layer's experts, of those an expert group spreads
  // Kept in float32 on disk where the rest is of 16 bits, and not to be rounded for use.
  bool keep_float32 = false;
  int64_t elements() const;
};

// Indices into the table; -1 for one that the layer does not have.
struct LayerParameters {
  int64_t q_proj = -1;
  int64_t k_proj = -1;
  int64_t v_proj = -1;
  int64_t o_proj = -1;  // of every kind of mix
  int64_t q_norm = -1;
  int64_t k_norm = -1;
  int64_t gate_proj = -1;  // of the dense feed-forward part
  int64_t up_proj = -1;
  int64_t down_proj = -1;
  int64_t input_norm = -1;           // before attention
  int64_t post_attention_norm = -1;  // before the feed-forward part

  // Residual streams, at attention and at the feed-forward part.
  int64_t hyper_attention_fn = -1;     // [maps, streams x hidden]
  int64_t hyper_attention_base = -1;   // [maps]
  int64_t hyper_attention_scale = -1;  // [3]
  int64_t hyper_ffn_fn = -1;
  int64_t hyper_ffn_base = -1;
  int64_t hyper_ffn_scale = -1;

  // Linear attention, with q_proj, k_proj, v_proj and o_proj.
  int64_t q_conv = -1;  // [heads x width, 1, taps]
  int64_t k_conv = -1;
  int64_t v_conv = -1;
  int64_t beta_proj = -1;     // b_proj: [heads, hidden]
  int64_t decay_a_proj = -1;  // f_a_proj: [width, hidden]
  int64_t decay_b_proj = -1;  // f_b_proj: [heads x width, width]
  int64_t gate_a_proj = -1;   // g_a_proj
  int64_t gate_b_proj = -1;   // g_b_proj
  int64_t decay_rate = -1;    // A_log: [heads], in kimi_linear [1, 1, heads, 1]
  int64_t dt_bias = -1;       // [heads x width]
  int64_t o_norm = -1;        // [width]

  // Latent attention, with o_proj. Queries come from q_proj where there is no q_a_proj.
  int64_t q_a_proj = -1;
  int64_t q_a_norm = -1;
  int64_t q_b_proj = -1;
  int64_t kv_a_proj = -1;  // [kv_lora_rank + rope_dim, hidden]
  int64_t kv_a_norm = -1;
  int64_t kv_b_proj = -1;  // [heads x (nope_dim + v_dim), kv_lora_rank]; of a head, keys come first

  // The index of sparse attention.
  int64_t index_q_proj = -1;       // wq_b: [heads x width, q_lora_rank]
  int64_t index_k_proj = -1;       // wk: [width, hidden]
  int64_t index_weights = -1;      // weights_proj: [heads, hidden]
  int64_t index_k_norm = -1;       // k_norm.weight
  int64_t index_k_norm_bias = -1;  // k_norm.bias
  int64_t index_pool_gate = -1;    // index_kpool_compress_gate: [width, hidden]
  int64_t index_pool_bias = -1;    // index_kpool_compress_ape: [pool, width]

  // Experts, beside those of ParameterTable::experts.
  int64_t router = -1;       // [experts, hidden]
  int64_t router_bias = -1;  // e_score_correction_bias
  int64_t shared_gate = -1;
  int64_t shared_up = -1;
  int64_t shared_down = -1;
};

// Routed experts of one block: the parameters of a kind have consecutive ids.
struct ExpertParameters {
  int64_t unit = -1;
  Range experts;
  int64_t gate = -1;  // of experts.begin: [width, hidden]
  int64_t up = -1;    // [width, hidden]
  int64_t down = -1;  // [hidden, width]
};

class ParameterTable {
 public:
  // UserError if the expert group has more ranks than a layer has experts.
  explicit ParameterTable(const ModelSpec& spec, int64_t expert_group = 1);

  const std::vector<Parameter>& parameters() const& { return parameters_; }
  const std::vector<Parameter>& parameters() const&& = delete;  // of a temporary: it would dangle
  int64_t num_units() const { return parameters_.back().unit + 1; }
  int64_t expert_group() const { return expert_group_; }

  int64_t embedding() const { return 0; }
  const LayerParameters& layer(int64_t index) const {
    return layers_.at(static_cast<size_t>(index));
  }
  // Of a layer with experts.
  const ExpertParameters& experts(int64_t layer, int64_t block) const;
  int64_t expert_unit(int64_t layer, int64_t block) const { return experts(layer, block).unit; }
  int64_t final_norm() const { return final_norm_; }
  // The embedding if the two are tied.
  int64_t head() const { return head_; }

  // -1 if there is none of that name.
  int64_t find(const std::string& name) const;
  int64_t total_elements() const;

 private:
  int64_t add(Parameter parameter);
  int64_t add_matrix(const std::string& name, int64_t out, int64_t in, int64_t unit, double std);
  int64_t add_norm(const std::string& name, int64_t width, int64_t unit);
  LayerParameters add_layer(const ModelSpec& spec, int64_t index);

  // hybrid_parameters.cpp
  LayerParameters add_hybrid_layer(const ModelSpec& spec, int64_t index);
  void add_experts(const ModelSpec& spec, int64_t layer);

  std::vector<Parameter> parameters_;
  std::unordered_map<std::string, int64_t> ids_;
  std::vector<LayerParameters> layers_;
  std::unordered_map<int64_t, std::vector<ExpertParameters>> experts_;  // by layer, then by block
  int64_t expert_group_ = 1;
  int64_t final_norm_ = -1;
  int64_t head_ = -1;
};

}  // namespace longspan
