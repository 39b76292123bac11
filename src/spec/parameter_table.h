// The parameters of a model in one fixed order, with their Hugging Face names. An index into it is
// the ParameterId by which stores, layers, optimizer and checkpoints know a parameter.
//
//   const ParameterTable table(spec);
//   const LayerParameters& ids = table.layer(3);        // ids.q_proj, ids.down_proj, ...
//   table.parameters()[size_t(ids.q_proj)].name         // "model.layers.3.self_attn.q_proj.weight"
//
// A *unit* is what is gathered and reduced as one: 0 the embedding, 1 + i layer i, the last one the
// final norm with an untied head. A tied head is the embedding's parameter used twice. The order is
// that in which transformers lists the parameters of the same model. An immutable value; any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spec/model_spec.h"

namespace longspan {

enum class InitKind { kNormal, kOnes };

struct Parameter {
  std::string name;
  std::vector<int64_t> shape;  // row-major; matrices are [out, in]
  int64_t unit = 0;
  InitKind init = InitKind::kNormal;
  double init_std = 0;        // of kNormal; its mean is 0
  bool decayed = true;        // weight decay: matrices, the embedding among them; norms have none
  bool trained = true;        // false: no gradient, no update
  int64_t expert_block = -1;  // which part of a layer's experts, of those an expert group spreads
  int64_t elements() const;
};

// Indices into the table; -1 for one that the family does not have.
struct LayerParameters {
  int64_t q_proj = -1;
  int64_t k_proj = -1;
  int64_t v_proj = -1;
  int64_t o_proj = -1;
  int64_t q_norm = -1;
  int64_t k_norm = -1;
  int64_t gate_proj = -1;
  int64_t up_proj = -1;
  int64_t down_proj = -1;
  int64_t input_norm = -1;           // before attention
  int64_t post_attention_norm = -1;  // before the feed-forward part
};

class ParameterTable {
 public:
  explicit ParameterTable(const ModelSpec& spec);

  const std::vector<Parameter>& parameters() const& { return parameters_; }
  const std::vector<Parameter>& parameters() const&& = delete;  // of a temporary: it would dangle
  int64_t num_units() const { return static_cast<int64_t>(layers_.size()) + 2; }

  int64_t embedding() const { return 0; }
  const LayerParameters& layer(int64_t index) const {
    return layers_.at(static_cast<size_t>(index));
  }
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

  std::vector<Parameter> parameters_;
  std::vector<LayerParameters> layers_;
  int64_t final_norm_ = -1;
  int64_t head_ = -1;
};

}  // namespace longspan
