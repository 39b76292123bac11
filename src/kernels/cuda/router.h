// Choice of experts and their weights on a GPU: twin of kernels/cpu/router.h, ties included.
//
//   cuda::router_choose(shape, logits, bias, tokens, ids, stream);
//   cuda::router_weights(shape, logits, ids, tokens, scores, weights, stream);
//   cuda::router_backward(shape, ids, scores, weights, dweights, tokens, dlogits, stream);
//
// float or double. A warp chooses for one token: its lanes hold the experts, and the best of those
// that are left is found top_k times. A score that is no number counts as the least.
#pragma once

#include "kernels/cpu/router.h"
#include "kernels/cuda/cuda_types.h"

namespace longspan::cuda {

// Whether there are kernels for the shape; "" or why not.
const char* router_refusal(const RouterShape& shape);

// `bias` may be null: none.
template <typename Real>
void router_choose(const RouterShape& shape, const Real* logits, const Real* bias, int64_t tokens,
                   int32_t* ids, Stream stream);

template <typename Real>
void router_weights(const RouterShape& shape, const Real* logits, const int32_t* ids,
                    int64_t tokens, Real* scores, Real* weights, Stream stream);

// `dlogits` is written whole: zero for experts that were not chosen.
template <typename Real>
void router_backward(const RouterShape& shape, const int32_t* ids, const Real* scores,
                     const Real* weights, const Real* dweights, int64_t tokens, Real* dlogits,
                     Stream stream);

}  // namespace longspan::cuda
