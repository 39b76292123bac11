#include "spec/parameter_table.h"

#include <utility>

#include "base/check.h"
#include "spec/parameter_names.h"

namespace longspan {

int64_t Parameter::elements() const {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

ParameterTable::ParameterTable(const ModelSpec& spec, int64_t expert_group)
    : expert_group_(expert_group) {
  LONGSPAN_CHECK(expert_group >= 1, "expert group of ", expert_group);
  const std::string body = parameter_prefix(spec.family);
  add_matrix(body + "embed_tokens.weight", spec.vocab_size, spec.hidden_size, 0,
             spec.initializer_range);
  for (int64_t i = 0; i < spec.num_layers; ++i) {
    layers_.push_back(spec.is_hybrid() ? add_hybrid_layer(spec, i) : add_layer(spec, i));
  }
  const int64_t last_unit = 1 + spec.num_layers;
  final_norm_ = add_norm(body + "norm.weight", spec.hidden_size, last_unit);
  head_ = spec.tied_embeddings ? embedding()
                               : add_matrix(kHeadName, spec.vocab_size, spec.hidden_size, last_unit,
                                            spec.initializer_range);
  for (int64_t i = 0; i < spec.num_layers; ++i) {
    if (spec.layer_kind(i).has_experts) add_experts(spec, i);
  }
}

int64_t ParameterTable::add(Parameter parameter) {
  const auto id = static_cast<int64_t>(parameters_.size());
  ids_.emplace(parameter.name, id);
  parameters_.push_back(std::move(parameter));
  return id;
}

int64_t ParameterTable::add_matrix(const std::string& name, int64_t out, int64_t in, int64_t unit,
                                   double std) {
  return add({.name = name, .shape = {out, in}, .unit = unit, .init_std = std});
}

int64_t ParameterTable::add_norm(const std::string& name, int64_t width, int64_t unit) {
  return add(
      {.name = name, .shape = {width}, .unit = unit, .init = InitKind::kOnes, .decayed = false});
}

LayerParameters ParameterTable::add_layer(const ModelSpec& spec, int64_t index) {
  const std::string prefix = layer_prefix(spec.family, index);
  const int64_t unit = 1 + index;
  const auto matrix = [&](const char* name, int64_t out, int64_t in) {
    return add_matrix(prefix + name + ".weight", out, in, unit, spec.initializer_range);
  };
  const auto norm = [&](const char* name, int64_t width) {
    return add_norm(prefix + name + ".weight", width, unit);
  };
  LayerParameters ids;
  ids.q_proj = matrix("self_attn.q_proj", spec.query_width(), spec.hidden_size);
  ids.k_proj = matrix("self_attn.k_proj", spec.kv_width(), spec.hidden_size);
  ids.v_proj = matrix("self_attn.v_proj", spec.kv_width(), spec.hidden_size);
  ids.o_proj = matrix("self_attn.o_proj", spec.hidden_size, spec.query_width());
  if (spec.has_head_norms()) {
    ids.q_norm = norm("self_attn.q_norm", spec.head_dim);
    ids.k_norm = norm("self_attn.k_norm", spec.head_dim);
  }
  ids.gate_proj = matrix("mlp.gate_proj", spec.intermediate_size, spec.hidden_size);
  ids.up_proj = matrix("mlp.up_proj", spec.intermediate_size, spec.hidden_size);
  ids.down_proj = matrix("mlp.down_proj", spec.hidden_size, spec.intermediate_size);
  ids.input_norm = norm("input_layernorm", spec.hidden_size);
  ids.post_attention_norm = norm("post_attention_layernorm", spec.hidden_size);
  return ids;
}

const ExpertParameters& ParameterTable::experts(int64_t layer, int64_t block) const {
  const auto found = experts_.find(layer);
  LONGSPAN_CHECK(found != experts_.end(), "layer ", layer, " has no experts");
  return found->second.at(static_cast<size_t>(block));
}

int64_t ParameterTable::find(const std::string& name) const {
  const auto found = ids_.find(name);
  return found == ids_.end() ? -1 : found->second;
}

int64_t ParameterTable::total_elements() const {
  int64_t sum = 0;
  for (const Parameter& parameter : parameters_) sum += parameter.elements();
  return sum;
}

}  // namespace longspan
