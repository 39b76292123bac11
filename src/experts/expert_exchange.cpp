#include "experts/expert_exchange.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "base/check.h"
#include "device/device.h"
#include "experts/chunk_messages.h"

namespace longspan {
namespace {

// In the accumulation type: a token's sum over the ranks of its experts is rounded once.
at::Tensor zero_sums(const at::Tensor& like) {
  return at::zeros(like.sizes(), like.options().dtype(accumulate_type(like.scalar_type())));
}

}  // namespace

int64_t expert_chunk_bytes(const ExpertGroupShape& shape, int64_t model_width, int64_t expert_width,
                           int64_t element_bytes) {
  // x, dy and dx of the rows and again of one expert's; gate, up, their gradients, the product.
  const int64_t numbers = 6 * model_width + 5 * expert_width + 3;
  // Places, rows and expert of each pair, by expert and by sender.
  const int64_t index_bytes = 5 * static_cast<int64_t>(sizeof(int64_t));
  return shape.max_pairs_per_chunk * (numbers * element_bytes + index_bytes);
}

ExpertExchange::ExpertExchange(const ExpertExchangeOptions& options, Communicator* group)
    : options_(options), group_(group) {
  check_expert_group(options.group);
  LONGSPAN_CHECK(options.limit > 0, "SwiGLU limit ", options.limit);
  LONGSPAN_CHECK(options.group.ranks == (group != nullptr ? group->size() : 1), "experts over ",
                 options.group.ranks, " ranks, a group of ", group != nullptr ? group->size() : 1);
}

Range ExpertExchange::own_experts() const {
  const int64_t count = options_.group.experts_per_rank();
  const int64_t rank = group_ != nullptr ? group_->rank() : 0;
  return {rank * count, (rank + 1) * count};
}

ExpertDispatch ExpertExchange::dispatch(const ExpertCall& call, const at::Tensor& ids_TK) const {
  return {options_.group, ids_TK, group_, call.op + ", counts"};
}

void ExpertExchange::check(const ExpertDispatch& dispatch, const ExpertInputs& inputs,
                           const ExpertWeights& weights) const {
  const at::Tensor& x = inputs.x_TD;
  LONGSPAN_CHECK(x.dim() == 2 && x.is_contiguous() && x.size(0) == dispatch.tokens() &&
                     inputs.weights_TK.is_contiguous() &&
                     inputs.weights_TK.scalar_type() == accumulate_type(x.scalar_type()) &&
                     inputs.weights_TK.sizes() == dispatch.ids_TK().sizes(),
                 "x ", x.toString(), " ", x.sizes(), ", weights ", inputs.weights_TK.toString(),
                 " ", inputs.weights_TK.sizes(), ", ids ", dispatch.ids_TK().sizes());
  LONGSPAN_CHECK(weights.gate_eFD.size(0) == own_experts().size(), weights.gate_eFD.sizes(),
                 " are not the weights of experts ", own_experts());
}

at::Tensor ExpertExchange::forward(const ExpertCall& call, const ExpertDispatch& dispatch,
                                   const ExpertInputs& inputs, const ExpertWeights& weights) const {
  const c10::AutoGradMode off(false);
  check(dispatch, inputs, weights);
  const at::Tensor y = zero_sums(inputs.x_TD);
  for (int64_t chunk = 0; chunk < dispatch.chunks(); ++chunk) {
    const ChunkMessages messages(dispatch, chunk, group_, call);
    const ExpertBatch batch = messages.fetch(inputs.x_TD, inputs.weights_TK);
    messages.return_rows(expert_products(batch, weights, options_.limit), 3, y);
  }
  return y.to(inputs.x_TD.scalar_type());
}

ExpertInputGradients ExpertExchange::backward(const ExpertCall& call,
                                              const ExpertDispatch& dispatch,
                                              const ExpertInputs& inputs, const at::Tensor& dy_TD,
                                              const ExpertWeights& weights,
                                              const ExpertWeightGradients& gradients) const {
  const c10::AutoGradMode off(false);
  check(dispatch, inputs, weights);
  LONGSPAN_CHECK(dy_TD.is_contiguous() && dy_TD.sizes() == inputs.x_TD.sizes() &&
                     dy_TD.scalar_type() == inputs.x_TD.scalar_type(),
                 "dy ", dy_TD.toString(), " ", dy_TD.sizes(), ", x ", inputs.x_TD.toString(), " ",
                 inputs.x_TD.sizes());
  ExpertInputGradients result{zero_sums(inputs.x_TD), zero_sums(inputs.weights_TK)};
  for (int64_t chunk = 0; chunk < dispatch.chunks(); ++chunk) {
    const ChunkMessages messages(dispatch, chunk, group_, call);
    const ExpertBatch batch = messages.fetch(inputs.x_TD, inputs.weights_TK);
    const at::Tensor dy_RD = messages.fetch_rows(dy_TD, 3);
    const ExpertBatchGradient gradient =
        expert_products_backward(batch, dy_RD, weights, options_.limit, gradients);
    messages.return_rows(gradient.dx_RD, 4, result.dx_TD);
    messages.return_pairs(gradient.dweights_P, 5, result.dweights_TK);
  }
  result.dx_TD = result.dx_TD.to(inputs.x_TD.scalar_type());
  return result;
}

}  // namespace longspan
