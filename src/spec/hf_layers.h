// The lists of a hybrid's configuration that say what each layer is. Private to spec/.
//
//   spec.layer_kinds = read_layer_kinds(fields, spec.num_layers, rules);
//
// Several keys say the same thing; each may be missing, and those that are there must agree.
// Pure functions.
#pragma once

#include <string>
#include <vector>

#include "spec/hf_fields.h"
#include "spec/model_spec.h"

namespace longspan {

struct LayerListRules {
  const char* attention_name;          // in layer_types; "full_attention" is always understood
  MixKind attention_kind;              // and what it means
  int64_t first_layer;                 // how kda_layers and full_attn_layers count: from 0 or 1
  std::vector<MixKind> default_kinds;  // one per layer, if no list is there
  int64_t default_dense_layers;        // if neither mlp_layer_types nor first_k_dense_replace is
};

std::vector<LayerKind> read_layer_kinds(const JsonFields& fields, int64_t num_layers,
                                        const LayerListRules& rules);

// The lists back, into the configuration and its linear_attn_config.
void write_layer_kinds(const ModelSpec& spec, const LayerListRules& rules, Json& config);

}  // namespace longspan
