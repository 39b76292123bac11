// Small differentiable operations without parameters, each one node of ours, so that what a graph
// keeps can be counted (layers/segment.h).
//
//   at::Tensor qkv = stack_rows({q_TW, k_TW, v_TW});          // [T, 3, W]
//   at::Tensor beta = logistic(project(access, x, ids.beta));
//
// Kept: logistic its result; the others nothing. Rows may be none.
// Thread contract: as ops.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace longspan {

// Tensors of one shape [T, ...] to [T, n, ...].
at::Tensor stack_rows(const std::vector<at::Tensor>& parts);

at::Tensor logistic(const at::Tensor& x);

at::Tensor sum_of(const at::Tensor& a, const at::Tensor& b);

// [T, H, K] to [T, H, width]: what is beyond is dropped, and its gradient is zero.
at::Tensor narrow_heads(const at::Tensor& x_THK, int64_t width);

}  // namespace longspan
