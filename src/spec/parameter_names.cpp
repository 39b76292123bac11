#include "spec/parameter_names.h"

#include "base/error.h"

namespace longspan {

std::string parameter_prefix(ModelFamily family) {
  return family == ModelFamily::kGlm5Next ? "model.language_model." : "model.";
}

std::string embedding_name(ModelFamily family) {
  return parameter_prefix(family) + "embed_tokens.weight";
}

std::string layer_prefix(ModelFamily family, int64_t layer) {
  return text(parameter_prefix(family), "layers.", layer, ".");
}

const char* expert_prefix(ModelFamily family) {
  return family == ModelFamily::kKimiLinear ? "block_sparse_moe." : "mlp.";
}

bool has_carried_tensors(ModelFamily family) {
  return family == ModelFamily::kGlm5Next;
}

bool is_carried_tensor(const ModelSpec& spec, std::string_view name) {
  if (!has_carried_tensors(spec.family)) return false;
  if (name.starts_with("model.visual.")) return true;
  for (int64_t i = 0; i < spec.prediction_layers; ++i) {
    if (name.starts_with(layer_prefix(spec.family, spec.num_layers + i))) return true;
  }
  return false;
}

std::string other_name(const ModelSpec& spec, const std::string& name) {
  constexpr std::string_view kDense = ".mlp.";
  const size_t found = name.find(kDense);
  if (spec.family != ModelFamily::kKimiLinear || found == std::string::npos) return "";
  std::string other = name;
  return other.replace(found, kDense.size(), text(".", expert_prefix(spec.family)));
}

}  // namespace longspan
