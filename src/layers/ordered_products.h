// Private to layers/: the products of kernels/cpu/ordered_products.h on tensors, dealt to threads;
// the bits do not depend on their number.
//
//   const at::Tensor y = ordered_linear(x_TK, weight_MK);             // x W^T
//   ordered_linear_backward(dy_TM, weight_MK, x_TK, dx_TK, gradient_MK);
//
// Contiguous tensors of one type, float32 or float64, on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

namespace longspan {

at::Tensor ordered_linear(const at::Tensor& x_TK, const at::Tensor& weight_MK);

// dx += dy W; gradient += dy^T x.
void ordered_linear_backward(const at::Tensor& dy_TM, const at::Tensor& weight_MK,
                             const at::Tensor& x_TK, const at::Tensor& dx_TK,
                             const at::Tensor& gradient_MK);

}  // namespace longspan
