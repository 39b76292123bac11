#include <algorithm>

#include "kernels/cpu/block_product.h"
#include "kernels/cpu/kda_chunk.h"

namespace longspan {
namespace {

template <typename Real>
using Buffers = typename KdaScratch<Real>::Buffers;

}  // namespace

template <typename Real>
void apply_state(int64_t rows, const Real* state, int64_t columns,
                 typename KdaScratch<Real>::Buffers& work) {
  const int64_t K = work.K;
  const int64_t V = work.V;
  const int64_t wu_stride = K + V;
  for (int64_t i = 0; i < rows; ++i) {
    Real* row = work.moved.data() + i * columns;
    std::copy_n(work.wu.data() + i * wu_stride + K, V, row);
    std::fill(row + V, row + columns, Real{0});
  }
  multiply<Start::kKeep, Real>({rows, columns, K}, {work.wu.data(), wu_stride, 1}, {state, columns},
                               {work.moved.data(), columns});
}

template <typename Real>
void advance_state(int64_t rows, Real* state, int64_t columns,
                   typename KdaScratch<Real>::Buffers& work) {
  const int64_t K = work.K;
  const Real* gamma = work.from_start.data() + (rows - 1) * K;
  for (int64_t d = 0; d < K; ++d) {
    Real* row = state + d * columns;
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) row[c] *= gamma[d];
  }
  multiply<Start::kKeep, Real>({K, columns, rows}, {work.k_minus.data(), 1, K},
                               {work.moved.data(), columns}, {state, columns});
}

template <typename Real>
void kda_forward(const LinearAttentionShape& shape, const KdaStretch<Real>& in,
                 const Real* state_before, Strip<Real> o, Real* state_after,
                 const KdaScratch<Real>& scratch) {
  Buffers<Real>& work = scratch.buffers();
  const int64_t K = shape.key_width;
  const int64_t V = shape.value_width;
  Real* state = work.state.data();
  if (state_before != nullptr) {
    std::copy_n(state_before, K * V, state);
  } else {
    std::fill_n(state, K * V, Real{0});
  }
  const int64_t chunks = kda_chunks(in.rows);
  for (int64_t idx = 0; idx < chunks; ++idx) {
    const KdaStretch<Real> chunk = kda_chunk(in, idx);
    prepare_chunk(chunk, true, work);
    apply_state(chunk.rows, state, V, work);
    const ProductRows<Real> result{o.row(idx * kKdaChunkRows), o.stride};
    multiply<Start::kZero, Real>({chunk.rows, V, K}, {work.q_plus.data(), K, 1}, {state, V},
                                 result);
    multiply<Start::kKeep, Real>({chunk.rows, V, chunk.rows}, {work.p.data(), kKdaChunkRows, 1},
                                 {work.moved.data(), V}, result);
    if (idx + 1 < chunks || state_after != nullptr) advance_state(chunk.rows, state, V, work);
  }
  if (state_after != nullptr) std::copy_n(state, K * V, state_after);
}

template <typename Real>
void kda_map(const LinearAttentionShape& shape, const KdaStretch<Real>& in, bool with_matrix,
             Real* map, const KdaScratch<Real>& scratch) {
  Buffers<Real>& work = scratch.buffers();
  const int64_t K = shape.key_width;
  const int64_t columns = shape.value_width + (with_matrix ? K : 0);
  // The map of no rows: N = 0, M = I. Both then move on like states.
  std::fill_n(map, K * columns, Real{0});
  for (int64_t d = 0; with_matrix && d < K; ++d) map[d * columns + shape.value_width + d] = 1;
  for (int64_t idx = 0; idx < kda_chunks(in.rows); ++idx) {
    const KdaStretch<Real> chunk = kda_chunk(in, idx);
    prepare_chunk(chunk, false, work);
    apply_state(chunk.rows, map, columns, work);
    advance_state(chunk.rows, map, columns, work);
  }
}

#define LONGSPAN_INSTANTIATE(Real)                                                             \
  template void apply_state(int64_t, const Real*, int64_t, KdaScratch<Real>::Buffers&);        \
  template void advance_state(int64_t, Real*, int64_t, KdaScratch<Real>::Buffers&);            \
  template void kda_forward(const LinearAttentionShape&, const KdaStretch<Real>&, const Real*, \
                            Strip<Real>, Real*, const KdaScratch<Real>&);                      \
  template void kda_map(const LinearAttentionShape&, const KdaStretch<Real>&, bool, Real*,     \
                        const KdaScratch<Real>&);
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan
