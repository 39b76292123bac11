// Choice of experts for each token, and the weights of the chosen ones.
//
// Per token, s = sigmoid(logits): the chosen experts are the `top_k` largest of s + bias, where of
// equal ones the lower index goes first; the bias only selects. Their weights are scale * s, or
// scale * s / (sum of the chosen s + 1e-20) if they are normalized. Ids come in ascending order, so
// that every later sum over a token's experts has one order.
//
//   router_choose(shape, logits, bias, {0, tokens}, ids);
//   router_weights(shape, logits, ids, {0, tokens}, scores, weights);
//   router_backward(shape, ids, scores, weights, dweights, {0, tokens}, dlogits);
//
// Shapes: logits [T, E], ids, scores (the chosen s), weights [T, K]; contiguous.
// Thread contract: pure on disjoint rows.
#pragma once

#include <cstdint>

#include "base/range.h"

namespace longspan {

struct RouterShape {
  int64_t experts = 0;
  int64_t top_k = 0;
  bool normalized = true;
  double scale = 1;
};

// `bias` may be null: none.
template <typename Real>
void router_choose(const RouterShape& shape, const Real* logits, const Real* bias, Range rows,
                   int32_t* ids);

template <typename Real>
void router_weights(const RouterShape& shape, const Real* logits, const int32_t* ids, Range rows,
                    Real* scores, Real* weights);

// `dlogits` is written whole: zero for experts that were not chosen.
template <typename Real>
void router_backward(const RouterShape& shape, const int32_t* ids, const Real* scores,
                     const Real* weights, const Real* dweights, Range rows, Real* dlogits);

}  // namespace longspan
