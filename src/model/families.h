// Private to model/: the families, and what they share.
//
// A family is a file that says what its layers do before and after core attention. Parts that
// several families have in common stand in dense_layer.cpp.
//
//   auto [q, k, v] of a layer = attention_projections(access, ids, spec, x_TC);
//
// Pure functions of their arguments; graphs belong to the calling rank.
#pragma once

#include <memory>
#include <vector>

#include "model/transformer_model.h"

namespace longspan {

std::unique_ptr<TransformerModel> make_llama(const ModelSpec& spec,
                                             const at::TensorOptions& tensors,
                                             const HeadLossOptions& options);
std::unique_ptr<TransformerModel> make_qwen3(const ModelSpec& spec,
                                             const at::TensorOptions& tensors,
                                             const HeadLossOptions& options);

// glm5_next and kimi_linear.
std::unique_ptr<TransformerModel> make_hybrid(const ModelSpec& spec, int64_t expert_group,
                                              const at::TensorOptions& tensors,
                                              const HeadLossOptions& options);

// RMSNorm, then queries [T, H, K], keys and values [T, G, K].
std::vector<at::Tensor> attention_projections(const ParameterAccess& access,
                                              const LayerParameters& ids, const ModelSpec& spec,
                                              const at::Tensor& x_TC);

// Output projection and SwiGLU feed-forward, each with its residual:
// h = x + o Wo^T;  y = h + swiglu(norm(h)) Wdown^T.
at::Tensor dense_output(const ParameterAccess& access, const LayerParameters& ids,
                        const ModelSpec& spec, const at::Tensor& o_THK, const at::Tensor& x_TC);

}  // namespace longspan
