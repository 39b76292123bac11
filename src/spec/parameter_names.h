// Names of tensors in model folders that more than one part of longspan must know.
//
//   const std::string name = layer_prefix(spec.family, 3) + "input_layernorm.weight";
//   if (is_carried_tensor(spec, name)) ...       // not ours: it passes through an export unchanged
//
// Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>

#include "spec/model_spec.h"

namespace longspan {

inline constexpr const char* kHeadName = "lm_head.weight";

// Of embedding, layers and final norm: "model.", where an image part may stand beside the text
// part "model.language_model.".
std::string parameter_prefix(ModelFamily family);
std::string embedding_name(ModelFamily family);
std::string layer_prefix(ModelFamily family, int64_t layer);

// Of a layer's experts and their router, behind layer_prefix; a dense part's is "mlp.".
const char* expert_prefix(ModelFamily family);

// Tensors that a model folder may hold beside the parameters of the table: of the image part and of
// prediction layers. They are neither run nor trained.
bool is_carried_tensor(const ModelSpec& spec, std::string_view name);

// Whether folders of this family may hold such tensors at all.
bool has_carried_tensors(ModelFamily family);

// Another name under which folders written by other programs hold a parameter; empty if there is
// none. transformers writes the dense parts of kimi_linear as if they were experts.
std::string other_name(const ModelSpec& spec, const std::string& name);

}  // namespace longspan
