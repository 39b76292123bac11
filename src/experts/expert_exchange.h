// Mixture of experts over a group of ranks: tokens travel to the ranks of their experts and the
// results come back. Forward and backward are explicit, outside of autograd.
//
//   const ExpertExchange experts({.group = {.experts = 288, .top_k = 8, .ranks = 8}, .limit = 10},
//                                group);
//   const ExpertDispatch dispatch = experts.dispatch(call, ids_TK);    // counts are exchanged
//   at::Tensor y_TD = experts.forward(call, dispatch, {x_TD, weights_TK}, own_experts);
//   ExpertInputGradients d = experts.backward(call, dispatch, {x_TD, weights_TK}, dy_TD,
//                                             own_experts, accumulators);
//
// y_t = sum over the experts e of token t of weight_te F_e(x_t) (experts/expert_products.h). Each
// rank holds the weights of its own experts only. Nothing but x, ids and weights is needed for
// backward: the rows travel again, with those of dy, and the activations are formed again. A
// dispatch may be kept for backward or made again from the same ids.
// The work goes chunk by chunk (experts/expert_dispatch.h); in each, a rank holds at most
// max_pairs_per_chunk rows to send and as many received, and the activations of one expert.
// Sums over a token's experts run over chunks, in each over ranks, on a rank over its experts in
// ascending order: the same bits on every run; for another group or bound within rounding.
// Contract: all calls are collective over the group, in the same order on all its ranks; ranks
// without tokens call with no rows. Tags [call.tag, call.tag + kTagsPerExpertExchange) are used.
// One rank, on its thread.
#pragma once

#include "experts/expert_dispatch.h"
#include "experts/expert_products.h"
#include "kernels/cpu/swiglu.h"

namespace longspan {

inline constexpr int64_t kTagsPerExpertExchange = 8;

struct ExpertExchangeOptions {
  ExpertGroupShape group;
  double limit = kNoSwigluLimit;  // of SwiGLU
};

// The most bytes that a rank holds in an exchange beside the tensors of its tokens (x, weights, y,
// dy, dx, ids and the dispatch): rows on the way, and the activations of one expert, which in the
// worst case has all pairs of a chunk. Backward's need; forward's is smaller.
int64_t expert_chunk_bytes(const ExpertGroupShape& shape, int64_t model_width, int64_t expert_width,
                           int64_t element_bytes);

struct ExpertCall {
  int64_t tag = 0;
  std::string op;  // for errors and stall reports: "experts forward, layer 3, chunk 1"
};

struct ExpertInputs {
  at::Tensor x_TD;
  at::Tensor weights_TK;
};

struct ExpertInputGradients {
  at::Tensor dx_TD;
  at::Tensor dweights_TK;
};

class ExpertExchange {
 public:
  // `group` is null for one rank; it must outlive the exchange.
  ExpertExchange(const ExpertExchangeOptions& options, Communicator* group);

  // Of all experts, those whose weights this rank holds.
  Range own_experts() const;

  ExpertDispatch dispatch(const ExpertCall& call, const at::Tensor& ids_TK) const;

  at::Tensor forward(const ExpertCall& call, const ExpertDispatch& dispatch,
                     const ExpertInputs& inputs, const ExpertWeights& weights) const;

  ExpertInputGradients backward(const ExpertCall& call, const ExpertDispatch& dispatch,
                                const ExpertInputs& inputs, const at::Tensor& dy_TD,
                                const ExpertWeights& weights,
                                const ExpertWeightGradients& gradients) const;

 private:
  void check(const ExpertDispatch& dispatch, const ExpertInputs& inputs,
             const ExpertWeights& weights) const;

  ExpertExchangeOptions options_;
  Communicator* group_;
};

}  // namespace longspan
