#include "spec/hf_layers.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/range.h"

namespace longspan {
namespace {

constexpr const char* kLinearName = "linear_attention";

const Json* find_list(const JsonFields& fields, const char* key) {
  const Json* list = fields.find(key);
  if (list != nullptr && !list->is_array()) fields.fail(key, *list, "a list");
  return list;
}

void check_length(const JsonFields& fields, const char* key, const Json& list, int64_t num_layers) {
  if (static_cast<int64_t>(list.size()) == num_layers) return;
  throw UserError(text(fields.origin(), ": ", key, " names ", list.size(),
                       " layers, num_hidden_layers is ", num_layers));
}

std::optional<std::vector<MixKind>> read_layer_types(const JsonFields& fields, int64_t num_layers,
                                                     const LayerListRules& rules) {
  const Json* types = find_list(fields, "layer_types");
  if (types == nullptr) return std::nullopt;
  check_length(fields, "layer_types", *types, num_layers);
  std::vector<MixKind> kinds;
  for (const Json& type : *types) {
    if (type == kLinearName) {
      kinds.push_back(MixKind::kLinearAttention);
    } else if (type == rules.attention_name || type == "full_attention") {
      kinds.push_back(rules.attention_kind);
    } else {
      throw UserError(text(fields.origin(), ": layer_types holds ", type.dump(), "; only \"",
                           kLinearName, "\" and \"", rules.attention_name, "\" are implemented"));
    }
  }
  return kinds;
}

// Every layer must stand in exactly one of the two lists.
std::optional<std::vector<MixKind>> read_numbered_layers(const JsonFields& fields,
                                                         int64_t num_layers,
                                                         const LayerListRules& rules) {
  const Json* linear = find_list(fields, "kda_layers");
  const Json* full = find_list(fields, "full_attn_layers");
  if (linear == nullptr && full == nullptr) return std::nullopt;
  if (linear == nullptr || full == nullptr) {
    throw UserError(text(fields.origin(),
                         ": only one of kda_layers and full_attn_layers is "
                         "there; give both or neither"));
  }
  std::vector<std::optional<MixKind>> kinds(static_cast<size_t>(num_layers));
  const auto place = [&](const char* key, const Json& list, MixKind kind) {
    for (const Json& number : list) {
      const Range numbers{rules.first_layer, rules.first_layer + num_layers};
      if (!number.is_number_integer() || !numbers.contains(number.get<int64_t>())) {
        throw UserError(text(fields.origin(), ": ", key, " holds ", number.dump(),
                             "; layers are numbered from ", numbers.begin, " to ",
                             numbers.end - 1));
      }
      auto& slot = kinds[static_cast<size_t>(number.get<int64_t>() - rules.first_layer)];
      if (slot) {
        throw UserError(text(fields.origin(), ": kda_layers and full_attn_layers name layer ",
                             number.dump(), " twice"));
      }
      slot = kind;
    }
  };
  place("kda_layers", *linear, MixKind::kLinearAttention);
  place("full_attn_layers", *full, rules.attention_kind);
  std::vector<MixKind> complete;
  for (const auto& kind : kinds) {
    if (!kind) {
      throw UserError(text(fields.origin(), ": layer ", std::ssize(complete) + rules.first_layer,
                           " is neither in kda_layers nor in full_attn_layers"));
    }
    complete.push_back(*kind);
  }
  return complete;
}

std::vector<MixKind> read_mix_kinds(const JsonFields& fields, int64_t num_layers,
                                    const LayerListRules& rules) {
  const auto types = read_layer_types(fields, num_layers, rules);
  std::optional<std::vector<MixKind>> numbered;
  if (const Json* linear = fields.find("linear_attn_config")) {
    numbered = read_numbered_layers(JsonFields(*linear, fields.origin() + ": linear_attn_config"),
                                    num_layers, rules);
  }
  if (types && numbered && *types != *numbered) {
    const auto [in_types, in_lists] =
        std::mismatch(types->begin(), types->end(), numbered->begin());
    throw UserError(text(fields.origin(),
                         ": layer_types and the lists of linear_attn_config "
                         "disagree about layer ",
                         in_types - types->begin() + rules.first_layer));
  }
  if (types) return *types;
  return numbered ? *numbered : rules.default_kinds;
}

std::vector<bool> read_expert_layers(const JsonFields& fields, int64_t num_layers,
                                     const LayerListRules& rules) {
  const std::optional<int64_t> dense = fields.integer("first_k_dense_replace");
  std::vector<bool> has_experts(static_cast<size_t>(num_layers));
  const auto from_count = [&](int64_t first_sparse, size_t layer) {
    return static_cast<int64_t>(layer) >= first_sparse;
  };
  const Json* types = find_list(fields, "mlp_layer_types");
  if (types != nullptr) check_length(fields, "mlp_layer_types", *types, num_layers);
  for (size_t layer = 0; layer < has_experts.size(); ++layer) {
    if (types == nullptr) {
      has_experts[layer] = from_count(dense.value_or(rules.default_dense_layers), layer);
      continue;
    }
    const Json& type = (*types)[layer];
    if (type != "dense" && type != "sparse") {
      throw UserError(text(fields.origin(), ": mlp_layer_types holds ", type.dump(),
                           "; only \"dense\" and \"sparse\" are implemented"));
    }
    has_experts[layer] = type == "sparse";
    if (dense && from_count(*dense, layer) != has_experts[layer]) {
      throw UserError(text(fields.origin(), ": mlp_layer_types says ", type.dump(), " of layer ",
                           layer, " (from 0), but first_k_dense_replace is ", *dense));
    }
  }
  return has_experts;
}

}  // namespace

std::vector<LayerKind> read_layer_kinds(const JsonFields& fields, int64_t num_layers,
                                        const LayerListRules& rules) {
  const std::vector<MixKind> mixes = read_mix_kinds(fields, num_layers, rules);
  const std::vector<bool> has_experts = read_expert_layers(fields, num_layers, rules);
  std::vector<LayerKind> kinds;
  for (size_t layer = 0; layer < mixes.size(); ++layer) {
    kinds.push_back({mixes[layer], has_experts[layer]});
  }
  return kinds;
}

void write_layer_kinds(const ModelSpec& spec, const LayerListRules& rules, Json& config) {
  Json types = Json::array(), parts = Json::array(), linear = Json::array(), full = Json::array();
  int64_t dense = 0;
  bool dense_first = true;
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    const LayerKind kind = spec.layer_kind(layer);
    const bool is_linear = kind.mix == MixKind::kLinearAttention;
    types.push_back(is_linear ? kLinearName : rules.attention_name);
    (is_linear ? linear : full).push_back(layer + rules.first_layer);
    parts.push_back(kind.has_experts ? "sparse" : "dense");
    if (!kind.has_experts) dense_first = dense_first && dense++ == layer;
  }
  config["layer_types"] = types;
  config["mlp_layer_types"] = parts;
  if (dense_first) config["first_k_dense_replace"] = dense;
  config["linear_attn_config"]["kda_layers"] = linear;
  config["linear_attn_config"]["full_attn_layers"] = full;
}

}  // namespace longspan
