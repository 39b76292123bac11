// The differentiable operations that layers are written in.
//
// Each is one node of the autograd graph. It keeps activations only, and as few as its gradient
// allows; weights are asked for again in backward, and their gradients are added in place to the
// accumulators (layers/parameter_access.h). With grad mode off nothing is kept.
//
//   auto qkv = norm_linear(access, x_TC, ids.input_norm, epsilon, {{ids.q, ids.k, ids.v}});
//   at::Tensor q_THK = rope(qkv[0].view({tokens, heads, width}), table);
//   at::Tensor h_TC = linear(access, o_TC, ids.o, x_TC);            // + residual
//
// Legend: T tokens, C model width, H heads, K head width, F feed-forward width. Weights are
// [out, in]; there are no biases. Rows may be none.
// What is kept: norm_linear x and one number a row; project and linear x; head_norm q and one
// number a row and head; rope nothing (the table is shared); swiglu_linear gate and up.
//
// Thread contract: one rank, on its thread; the access must outlive the graph.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/cpu/swiglu.h"
#include "layers/parameter_access.h"

namespace longspan {

struct RopeTable;

// y = norm(x); one result y W^T per projection. The projections share y, which is not kept.
std::vector<at::Tensor> norm_linear(const ParameterAccess& access, const at::Tensor& x_TC,
                                    ParameterId norm, double epsilon,
                                    std::span<const ParameterId> projections);

// x W^T.
at::Tensor project(const ParameterAccess& access, const at::Tensor& x, ParameterId weight);

// x W^T + residual.
at::Tensor linear(const ParameterAccess& access, const at::Tensor& x, ParameterId weight,
                  const at::Tensor& residual);

// RMSNorm over the last axis, one weight for all heads.
at::Tensor head_norm(const ParameterAccess& access, const at::Tensor& q_THK, ParameterId norm,
                     double epsilon);

// Rotary embedding, rotate-half convention.
at::Tensor rope(const at::Tensor& q_THK, const std::shared_ptr<const RopeTable>& table);

// (silu(gate) * up) W^T + residual. The residual may be an undefined tensor: none. A finite limit
// clamps gate and up (kernels/cpu/swiglu.h).
at::Tensor swiglu_linear(const ParameterAccess& access, const at::Tensor& gate_TF,
                         const at::Tensor& up_TF, ParameterId weight, const at::Tensor& residual_TC,
                         double limit = kNoSwigluLimit);

}  // namespace longspan
