// The work of one rank's experts on rows that lie there: grouped products, no communication.
//
//   const at::Tensor y_RD = expert_products(batch, weights, limit);
//   ExpertBatchGradient d = expert_products_backward(batch, dy_RD, weights, limit, gradients);
//
// A batch holds R rows of tokens and P pairs (row, expert) with weights; row r of the result is the
// sum over its pairs of weight * F_expert(x_r), F(x) = W_down (silu(W_gate x) * W_up x), clamped if
// there is a limit (kernels/cpu/swiglu.h). Backward forms the activations again.
// Experts are visited in ascending order and pairs in their order, so the sums have a fixed order,
// and an expert without pairs adds nothing to anything.
// Legend: e experts of this rank, D model width, F expert width.
// Thread contract: one rank, on its thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace longspan {

struct ExpertWeights {
  at::Tensor gate_eFD;
  at::Tensor up_eFD;
  at::Tensor down_eDF;
};

// Accumulators, added to.
struct ExpertWeightGradients {
  at::Tensor gate_eFD;
  at::Tensor up_eFD;
  at::Tensor down_eDF;
};

struct ExpertBatch {
  at::Tensor x_RD;
  at::Tensor weights_P;
  std::vector<int64_t> rows;     // of each pair
  std::vector<int32_t> experts;  // of each pair, counted from this rank's first
};

struct ExpertBatchGradient {
  at::Tensor dx_RD;
  at::Tensor dweights_P;
};

at::Tensor expert_products(const ExpertBatch& batch, const ExpertWeights& weights, double limit);

ExpertBatchGradient expert_products_backward(const ExpertBatch& batch, const at::Tensor& dy_RD,
                                             const ExpertWeights& weights, double limit,
                                             const ExpertWeightGradients& gradients);

}  // namespace longspan
