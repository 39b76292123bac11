// Core attention as its formula says it: the oracle of every attention kernel. Never optimised.
//
//   reference_attention_forward(tile, shape, q, k, v, o, lse);
//   reference_attention_backward(tile, shape, {q, k, v, o, lse, d_o}, {dq, dk, dv});
//
// One tile (kernels/attention_shape.h) on contiguous rows, sums in double. Forward writes o and
// lse. Backward takes the o and lse of the whole row, merged over all tiles of it, and adds to dq,
// dk and dv: parts of a row add up without any correction.
// Pure on its outputs; any thread.
#pragma once

#include "kernels/attention_shape.h"

namespace longspan {

template <typename Real>
void reference_attention_forward(const AttentionTile& tile, const AttentionShape& shape,
                                 const Real* q, const Real* k, const Real* v, Real* o, Real* lse);

template <typename Real>
struct ReferenceAttentionInputs {
  const Real* q;
  const Real* k;
  const Real* v;
  const Real* o;
  const Real* lse;
  const Real* d_o;
};

template <typename Real>
struct ReferenceAttentionGradients {
  Real* d_q;
  Real* d_k;
  Real* d_v;
};

template <typename Real>
void reference_attention_backward(const AttentionTile& tile, const AttentionShape& shape,
                                  const ReferenceAttentionInputs<Real>& inputs,
                                  const ReferenceAttentionGradients<Real>& gradients);

}  // namespace longspan
