// The kernels on tensors: shapes checked, results allocated, rows dealt to threads or, on a GPU,
// queued. No autograd here; ops.h builds the differentiable operations from these.
//
//   auto [y, inverse_rms] = norm_forward(x_TC, weight_C, 1e-5);
//   norm_backward(x_TC, weight_C, inverse_rms, dy_TC, dweight_C, dx_TC, &y_TC);
//
// Legend: T tokens, C width of the normed axis, H heads, K head width, F feed-forward width.
// Tensors are contiguous, all of one type: float32 or float64, on a GPU also bfloat16; gradients of
// weights, inverse RMS and rope tables have its accumulation type. Rows may be none.
// Bits do not depend on the number of threads: rows are independent, and sums over rows run over
// fixed blocks in order.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/cpu/swiglu.h"
#include "layers/rope_table.h"

namespace longspan {

struct NormOutput {
  at::Tensor y;
  at::Tensor inverse_rms;  // one number a row
};

struct SwigluGradient {
  at::Tensor y;  // the forward's result again, the same bits
  at::Tensor dgate;
};

// x [..., C], weight [C].
NormOutput norm_forward(const at::Tensor& x, const at::Tensor& weight, double epsilon);

// Adds the weight's gradient to `weight_gradient` and writes dx, which may be dy itself. `y`, if
// not null, becomes the forward's result again, the same bits.
void norm_backward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& inverse_rms,
                   const at::Tensor& dy, const at::Tensor& weight_gradient, const at::Tensor& dx,
                   at::Tensor* y);

// q [T, H, K]; direction +1 is the forward, -1 the backward.
at::Tensor rotate(const at::Tensor& q_THK, const RopeTable& table, int direction);

// A finite limit clamps gate and up (kernels/cpu/swiglu.h).
at::Tensor swiglu(const at::Tensor& gate_TF, const at::Tensor& up_TF,
                  double limit = kNoSwigluLimit);
// `dy` becomes dup, in place.
SwigluGradient swiglu_backward(const at::Tensor& gate_TF, const at::Tensor& up_TF,
                               const at::Tensor& dy_TF, double limit = kNoSwigluLimit);

}  // namespace longspan
