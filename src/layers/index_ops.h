// What an index that is not trained is made from: operations without a gradient.
//
// Why apart: their results have no autograd history, whatever the grad mode, so nothing of them is
// kept, and neither their parameters nor their inputs get a gradient through them.
//
//   at::Tensor k_TD = untrained_layer_norm(access, untrained_project(access, x, ids.wk), ids.norm,
//                                          ids.norm_bias, 1e-6);
//   at::Tensor r_TD = add_slots(access, untrained_project(access, x, ids.gate), ids.slots,
//   positions);
//
// Rows may be none. On a GPU in bfloat16 each result is rounded once, sums are float32.
// Thread contract: one rank, on its thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "layers/parameter_access.h"

namespace longspan {

// x W^T.
at::Tensor untrained_project(const ParameterAccess& access, const at::Tensor& x,
                             ParameterId weight);

// Over the last axis, the mean subtracted.
at::Tensor untrained_layer_norm(const ParameterAccess& access, const at::Tensor& x,
                                ParameterId weight, ParameterId bias, double epsilon);

// x_TD + slots[position of the token in its document mod number of slots]; slots [pool, D].
at::Tensor add_slots(const ParameterAccess& access, const at::Tensor& x_TD, ParameterId slots,
                     std::span<const int64_t> positions);

}  // namespace longspan
