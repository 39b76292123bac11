// Private to layers/: dW += dy^T x, in the accumulator's type.
//
//   add_weight_gradient(access, ids.q_proj, dy_TN, x_TC);
//
// With bfloat16 activations the product is summed in float32 and added to the float32 accumulator
// by the matrix product itself: no rounding in between, and no pass of its own.
#pragma once

#include <ATen/ops/addmm.h>

#include "layers/parameter_access.h"

namespace longspan {

inline void add_weight_gradient(const ParameterAccess& access, ParameterId weight,
                                const at::Tensor& dy, const at::Tensor& x) {
  at::Tensor& gradient = access.gradients->gradient(weight);
  if (gradient.scalar_type() == x.scalar_type()) {
    gradient.addmm_(dy.t(), x);
  } else {
    at::addmm_out(gradient, gradient, dy.t(), x, gradient.scalar_type());
  }
}

}  // namespace longspan
