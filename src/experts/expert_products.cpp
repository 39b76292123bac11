#include "experts/expert_products.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "base/check.h"
#include "device/device.h"
#include "experts/cuda_expert_products.h"
#include "experts/expert_order.h"
#include "experts/row_moves.h"
#include "layers/row_ops.h"

namespace longspan {
namespace {

// The pairs of one expert.
struct ExpertPairs {
  std::vector<int64_t> pairs;
  std::vector<int64_t> rows;
};

ExpertPairs pairs_of(const ExpertOrder& order, int64_t expert) {
  const Range places = order.places(expert);
  const auto part = [&](const std::vector<int64_t>& all) {
    return std::vector<int64_t>(all.begin() + places.begin, all.begin() + places.end);
  };
  return {part(order.pairs), part(order.rows)};
}

void check_batch(const ExpertBatch& batch, const ExpertWeights& weights) {
  const at::Tensor& gate = weights.gate_eFD;
  const at::Tensor& down = weights.down_eDF;
  const at::ScalarType type = batch.x_RD.scalar_type();
  LONGSPAN_CHECK(gate.dim() == 3 && gate.sizes() == weights.up_eFD.sizes() && down.dim() == 3 &&
                     down.size(0) == gate.size(0) && down.size(1) == gate.size(2) &&
                     down.size(2) == gate.size(1) && batch.x_RD.dim() == 2 &&
                     batch.x_RD.size(1) == gate.size(2),
                 "experts ", gate.sizes(), " ", weights.up_eFD.sizes(), " ", down.sizes(),
                 ", rows ", batch.x_RD.sizes());
  LONGSPAN_CHECK(gate.scalar_type() == type && weights.up_eFD.scalar_type() == type &&
                     down.scalar_type() == type &&
                     batch.weights_P.scalar_type() == accumulate_type(type),
                 "experts ", gate.toString(), ", rows ", batch.x_RD.toString(), ", weights ",
                 batch.weights_P.toString());
  LONGSPAN_CHECK(batch.rows.size() == batch.experts.size() &&
                     batch.weights_P.numel() == std::ssize(batch.rows),
                 batch.rows.size(), " rows of pairs, ", batch.experts.size(), " experts of pairs, ",
                 batch.weights_P.numel(), " weights");
}

void check_gradients(const ExpertWeights& weights, const ExpertWeightGradients& gradients) {
  auto check = [](const at::Tensor& weight, const at::Tensor& gradient) {
    LONGSPAN_CHECK(gradient.sizes() == weight.sizes() &&
                       gradient.scalar_type() == accumulate_type(weight.scalar_type()),
                   "weight ", weight.toString(), " ", weight.sizes(), ", its gradient ",
                   gradient.toString(), " ", gradient.sizes());
  };
  check(weights.gate_eFD, gradients.gate_eFD);
  check(weights.up_eFD, gradients.up_eFD);
  check(weights.down_eDF, gradients.down_eDF);
}

}  // namespace

at::Tensor expert_products(const ExpertBatch& batch, const ExpertWeights& weights, double limit) {
  const c10::AutoGradMode off(false);
  check_batch(batch, weights);
  if constexpr (kBuiltWithCuda) {
    if (batch.x_RD.is_cuda()) return cuda_expert_products(batch, weights, limit);
  }
  at::Tensor y = at::zeros_like(batch.x_RD);
  const ExpertOrder order = expert_order(batch, weights.gate_eFD.size(0));
  for (int64_t e = 0; e < weights.gate_eFD.size(0); ++e) {
    const ExpertPairs group = pairs_of(order, e);
    if (group.pairs.empty()) continue;
    const at::Tensor x = gathered(batch.x_RD, group.rows);
    const at::Tensor gate = at::mm(x, weights.gate_eFD[e].t());
    const at::Tensor up = at::mm(x, weights.up_eFD[e].t());
    const at::Tensor out = at::mm(swiglu(gate, up, limit), weights.down_eDF[e].t());
    add_weighted(out, group.rows, gathered(batch.weights_P, group.pairs), y);
  }
  return y;
}

ExpertBatchGradient expert_products_backward(const ExpertBatch& batch, const at::Tensor& dy_RD,
                                             const ExpertWeights& weights, double limit,
                                             const ExpertWeightGradients& gradients) {
  const c10::AutoGradMode off(false);
  check_batch(batch, weights);
  check_gradients(weights, gradients);
  if constexpr (kBuiltWithCuda) {
    if (batch.x_RD.is_cuda()) {
      return cuda_expert_products_backward(batch, dy_RD, weights, limit, gradients);
    }
  }
  ExpertBatchGradient result{at::zeros_like(batch.x_RD), at::empty_like(batch.weights_P)};
  const ExpertOrder order = expert_order(batch, weights.gate_eFD.size(0));
  for (int64_t e = 0; e < weights.gate_eFD.size(0); ++e) {
    const ExpertPairs group = pairs_of(order, e);
    if (group.pairs.empty()) continue;
    const at::Tensor x = gathered(batch.x_RD, group.rows);
    const at::Tensor dy = gathered(dy_RD, group.rows);
    const at::Tensor share = gathered(batch.weights_P, group.pairs);
    const at::Tensor gate = at::mm(x, weights.gate_eFD[e].t());
    const at::Tensor up = at::mm(x, weights.up_eFD[e].t());
    // <dy, W_down a> = <W_down^T dy, a>: the weight's gradient needs no product of its own.
    const at::Tensor da = at::mm(dy, weights.down_eDF[e]);
    place_dots(da, swiglu(gate, up, limit), group.pairs, result.dweights_P);
    scale_by(share, da);
    scale_by(share, dy);
    const SwigluGradient d = swiglu_backward(gate, up, da, limit);
    gradients.down_eDF[e].addmm_(dy.t(), d.y);
    gradients.gate_eFD[e].addmm_(d.dgate.t(), x);
    gradients.up_eFD[e].addmm_(da.t(), x);
    const at::Tensor dx = at::mm(d.dgate, weights.gate_eFD[e]);
    dx.addmm_(da, weights.up_eFD[e]);
    add_to(dx, group.rows, result.dx_RD);
  }
  return result;
}

}  // namespace longspan
