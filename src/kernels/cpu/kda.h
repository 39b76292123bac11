// Kimi delta attention (KDA): linear attention with a decay for every state row, in chunks.
//
//   S~ = exp(g_t) S_{t-1} (rows);  u = beta_t (v_t - S~^T k_t);  S_t = S~ + k_t u^T;  o_t = S_t^T
//   q_t
//
// Why chunks: 64 tokens at once are a few matrix products and one triangular solve instead of 64
// passes over the state S [K, V]. All decays in use are exp(a sum of g over the tokens between), in
// (0, 1]: any g <= 0 is safe, however strong.
//
// A call works on one head of one *stretch*, tokens of one document in a row. S is linear in the
// state before the stretch: S_after = M S_before + N. kda_map computes that, and ranks that hold
// parts of a document pass states on with it; kda_gradient_map is its mirror for backward.
//
//   KdaStretch<float> in{rows, {q, w}, {k, w}, {v, w}, {g, heads * w}, {beta, heads}};
//   kda_forward(shape, in, state_before, {o, heads * w}, state_after, scratch);
//
// q and k are normalised and q is scaled (kda_rows.h). States are row-major [K, V]; an absent one
// (null) before a stretch is zero. Results are written, not added.
// Thread contract: pure on disjoint results; a scratch belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/linear_attention_shape.h"

namespace longspan {

template <typename Real>
struct KdaStretch {
  int64_t rows = 0;
  Strip<const Real> q;     // [K]
  Strip<const Real> k;     // [K]
  Strip<const Real> v;     // [V]
  Strip<const Real> g;     // [K], <= 0
  Strip<const Real> beta;  // one number
};

template <typename Real>
struct KdaGradients {
  Strip<Real> q;
  Strip<Real> k;
  Strip<Real> v;
  Strip<Real> g;
  Strip<Real> beta;
};

// Buffers for one chunk: their size does not depend on the stretch.
template <typename Real>
class KdaScratch {
 public:
  explicit KdaScratch(const LinearAttentionShape& shape);
  ~KdaScratch();
  struct Buffers;
  Buffers& buffers() const { return *buffers_; }

 private:
  std::unique_ptr<Buffers> buffers_;
};

// `state_after` may be null.
template <typename Real>
void kda_forward(const LinearAttentionShape& shape, const KdaStretch<Real>& in,
                 const Real* state_before, Strip<Real> o, Real* state_after,
                 const KdaScratch<Real>& scratch);

// The stretch as an affine map of states: `map` [K, V + K] becomes N | M, with `with_matrix` false
// [K, V], N alone.
template <typename Real>
void kda_map(const LinearAttentionShape& shape, const KdaStretch<Real>& in, bool with_matrix,
             Real* map, const KdaScratch<Real>& scratch);

// The gradient of the state before as an affine map of that of the state after: `map` [K, V + K]
// becomes D | M^T, with `with_matrix` false D alone.
template <typename Real>
void kda_gradient_map(const LinearAttentionShape& shape, const KdaStretch<Real>& in,
                      Strip<const Real> d_o, bool with_matrix, Real* map,
                      const KdaScratch<Real>& scratch);

// `d_state_after` null: zero. `d_state_before` may be null. `states`: room for
// kda_states_before(rows) states.
template <typename Real>
void kda_backward(const LinearAttentionShape& shape, const KdaStretch<Real>& in,
                  const Real* state_before, Strip<const Real> d_o, const Real* d_state_after,
                  const KdaGradients<Real>& out, Real* d_state_before, Real* states,
                  const KdaScratch<Real>& scratch);

// Chunks of a stretch: how many states its backward needs at once.
int64_t kda_states_before(int64_t rows);

}  // namespace longspan
