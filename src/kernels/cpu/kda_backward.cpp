#include <algorithm>

#include "kernels/cpu/block_product.h"
#include "kernels/cpu/kda_chunk.h"

namespace longspan {
namespace {

template <typename Real>
using Buffers = typename KdaScratch<Real>::Buffers;

constexpr int64_t C = kKdaChunkRows;

// d_moved [rows, columns] = P^T dO + K- dS'. Columns from V on belong to no output.
template <typename Real>
void fill_d_moved(int64_t rows, Strip<const Real> d_o, const Real* d_state, int64_t columns,
                  Buffers<Real>& work) {
  const ProductRows<Real> result{work.d_moved.data(), columns};
  multiply<Start::kZero, Real>({rows, columns, work.K}, {work.k_minus.data(), work.K, 1},
                               {d_state, columns}, result);
  multiply<Start::kKeep, Real>({rows, work.V, rows}, {work.p.data(), 1, C}, {d_o.data, d_o.stride},
                               result);
}

// dS' becomes dS = gamma dS' + Q+^T dO - W^T d_moved.
template <typename Real>
void retreat_state(int64_t rows, Strip<const Real> d_o, Real* d_state, int64_t columns,
                   Buffers<Real>& work) {
  const int64_t K = work.K;
  const Real* gamma = work.from_start.data() + (rows - 1) * K;
  for (int64_t d = 0; d < K; ++d) {
    Real* row = d_state + d * columns;
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) row[c] *= gamma[d];
  }
  const ProductRows<Real> result{d_state, columns};
  multiply<Start::kKeep, Real>({K, columns, rows}, {work.wu.data(), 1, K + work.V},
                               {work.d_moved.data(), columns}, result);
  multiply<Start::kKeep, Real>({K, work.V, rows}, {work.q_plus.data(), 1, K},
                               {d_o.data, d_o.stride}, result);
}

// Gradients of the products with the states before (`state`) and after the chunk.
template <typename Real>
void differentiate_products(int64_t rows, Strip<const Real> d_o, const Real* state,
                            const Real* d_state, Buffers<Real>& work) {
  const int64_t K = work.K;
  const int64_t V = work.V;
  Real* transposed = work.transposed.data();
  transpose(state, K, V, V, K, transposed);
  multiply<Start::kZero, Real>({rows, K, V}, {d_o.data, d_o.stride, 1}, {transposed, K},
                               {work.d_q_plus.data(), K});
  // z = d_moved S^T | d_moved, on its way to (I + A)^-T of it.
  multiply<Start::kZero, Real>({rows, K, V}, {work.d_moved.data(), V, 1}, {transposed, K},
                               {work.z.data(), K + V});
  for (int64_t i = 0; i < rows; ++i) {
    std::copy_n(work.d_moved.data() + i * V, V, work.z.data() + i * (K + V) + K);
  }
  transpose(d_state, K, V, V, K, transposed);
  multiply<Start::kZero, Real>({rows, K, V}, {work.moved.data(), V, 1}, {transposed, K},
                               {work.d_k_minus.data(), K});
  transpose(work.moved.data(), rows, V, V, C, transposed);
  multiply<Start::kZero, Real>({rows, rows, V}, {d_o.data, d_o.stride, 1}, {transposed, C},
                               {work.d_p.data(), C});
  for (int64_t i = 0; i < rows; ++i) {
    std::fill(work.d_p.data() + i * C + i + 1, work.d_p.data() + i * C + rows, Real{0});
  }
  for (int64_t d = 0; d < K; ++d) {
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < V; ++c) sum += state[d * V + c] * d_state[d * V + c];
    work.d_gamma[static_cast<size_t>(d)] = sum;
  }
}

// z = (I + A)^-T z: the last block of rows first.
template <typename Real>
void solve_transposed(const KdaStretch<Real>& chunk, Buffers<Real>& work) {
  const int64_t columns = work.K + work.V;
  const int64_t last = (chunk.rows - 1) / kKdaBlockRows * kKdaBlockRows;
  for (int64_t first = last; first >= 0; first -= kKdaBlockRows) {
    const int64_t end = std::min(chunk.rows, first + kKdaBlockRows);
    if (end < chunk.rows) {
      Real* factors = work.transposed.data();  // -A of later rows and the block's columns
      for (int64_t i = end; i < chunk.rows; ++i) {
        for (int64_t j = first; j < end; ++j) {
          factors[(i - end) * kKdaBlockRows + j - first] =
              -*chunk.beta.row(i) * work.b[static_cast<size_t>(i * C + j)];
        }
      }
      multiply<Start::kKeep, Real>(
          {end - first, columns, chunk.rows - end}, {factors, 1, kKdaBlockRows},
          {work.z.data() + end * columns, columns}, {work.z.data() + first * columns, columns});
    }
    for (int64_t i = end - 1; i > first; --i) {
      const Real* z_i = work.z.data() + i * columns;
      for (int64_t j = first; j < i; ++j) {
        const Real factor = -*chunk.beta.row(i) * work.b[static_cast<size_t>(i * C + j)];
        Real* z_j = work.z.data() + j * columns;
#pragma omp simd
        for (int64_t c = 0; c < columns; ++c) z_j[c] += factor * z_i[c];
      }
    }
  }
}

// d_b, dv, dbeta, and beta times z's first part in place, which is then -dK+.
template <typename Real>
void differentiate_solve(const KdaStretch<Real>& chunk, const KdaGradients<Real>& out,
                         int64_t first_row, Buffers<Real>& work) {
  const int64_t K = work.K;
  const int64_t V = work.V;
  const int64_t columns = K + V;
  solve_transposed(chunk, work);
  transpose(work.wu.data(), chunk.rows, columns, columns, C, work.transposed.data());
  multiply<Start::kZero, Real>({chunk.rows, chunk.rows, columns}, {work.z.data(), columns, 1},
                               {work.transposed.data(), C}, {work.d_b.data(), C});
  for (int64_t i = 0; i < chunk.rows; ++i) {
    const Real beta = *chunk.beta.row(i);
    const Real* v = chunk.v.row(i);
    const Real* k_plus = work.k_plus.data() + i * K;
    const Real* b = work.b.data() + i * C;
    Real* z = work.z.data() + i * columns;
    Real* d_b = work.d_b.data() + i * C;
    Real* d_v = out.v.row(first_row + i);
    Real d_beta = 0;
    for (int64_t j = 0; j < i; ++j) {
      d_beta -= d_b[j] * b[j];
      d_b[j] *= -beta;
    }
    std::fill(d_b + i, d_b + chunk.rows, Real{0});
    for (int64_t d = 0; d < K; ++d) {
      d_beta -= z[d] * k_plus[d];
      z[d] *= beta;
    }
    for (int64_t c = 0; c < V; ++c) {
      d_beta += z[K + c] * v[c];
      d_v[c] = beta * z[K + c];
    }
    *out.beta.row(first_row + i) = d_beta;
  }
}

// Pairs of one query block with the rows before it.
template <typename Real>
void differentiate_earlier(int64_t first, int64_t end, Strip<Real> d_q, Buffers<Real>& work) {
  const int64_t K = work.K;
  Real* sums = work.transposed.data();
  const auto add_scaled = [&](const std::vector<Real>& factor, int64_t first_row, int64_t rows,
                              Strip<Real> result) {
    for (int64_t i = 0; i < rows; ++i) {
      const Real* factors = factor.data() + (first_row + i) * K;
      Real* row = result.row(i);
#pragma omp simd
      for (int64_t d = 0; d < K; ++d) row[d] += factors[d] * sums[i * K + d];
    }
  };
  const ProductSize of_queries{end - first, K, first};
  multiply<Start::kZero, Real>(of_queries, {work.d_p.data() + first * C, C, 1},
                               {work.earlier_k.data(), K}, {sums, K});
  add_scaled(work.from_block, first, end - first, {d_q.row(first), d_q.stride});
  multiply<Start::kZero, Real>(of_queries, {work.d_b.data() + first * C, C, 1},
                               {work.earlier_k.data(), K}, {sums, K});
  add_scaled(work.from_block, first, end - first, {work.left.data() + first * K, K});
  const ProductSize of_keys{first, K, end - first};
  multiply<Start::kZero, Real>(of_keys, {work.d_b.data() + first * C, 1, C},
                               {work.k_local.data() + first * K, K}, {sums, K});
  multiply<Start::kKeep, Real>(of_keys, {work.d_p.data() + first * C, 1, C},
                               {work.q_local.data() + first * K, K}, {sums, K});
  add_scaled(work.earlier_decay, 0, first, {work.right.data(), K});
}

// Pairs within the block of rows [first, end).
template <typename Real>
void differentiate_diagonal(const KdaStretch<Real>& chunk, int64_t first, int64_t end,
                            Strip<Real> d_q, Buffers<Real>& work) {
  const int64_t K = work.K;
  Real* between = work.row.data();  // decay from row j to row i
  for (int64_t j = first; j < end; ++j) {
    const Real* k_j = chunk.k.row(j);
    const Real* q_j = chunk.q.row(j);
    Real* right = work.right.data() + j * K;
    Real* d_q_j = d_q.row(j);
    const Real on_itself = work.d_p[static_cast<size_t>(j * C + j)];
#pragma omp simd
    for (int64_t d = 0; d < K; ++d) {
      between[d] = 1;
      d_q_j[d] += on_itself * k_j[d];
      right[d] += on_itself * q_j[d];
    }
    for (int64_t i = j + 1; i < end; ++i) {
      const Real* k_i = chunk.k.row(i);
      const Real* q_i = chunk.q.row(i);
      const Real* own_decay = work.own_decay.data() + i * K;
      Real* left = work.left.data() + i * K;
      Real* d_q_i = d_q.row(i);
      const Real d_p = work.d_p[static_cast<size_t>(i * C + j)];
      const Real d_b = work.d_b[static_cast<size_t>(i * C + j)];
#pragma omp simd
      for (int64_t d = 0; d < K; ++d) {
        between[d] *= own_decay[d];
        const Real decayed = k_j[d] * between[d];
        d_q_i[d] += d_p * decayed;
        left[d] += d_b * decayed;
        right[d] += (d_b * k_i[d] + d_p * q_i[d]) * between[d];
      }
    }
  }
}

// dq, left and right: of Q+, K+ and K-, and of all pairs.
template <typename Real>
void differentiate_rows(const KdaStretch<Real>& chunk, Strip<Real> d_q, Buffers<Real>& work) {
  const int64_t K = work.K;
  for (int64_t i = 0; i < chunk.rows; ++i) {
    const Real* from_start = work.from_start.data() + i * K;
    const Real* to_end = work.to_end.data() + i * K;
    const Real* d_q_plus = work.d_q_plus.data() + i * K;
    const Real* minus_d_k_plus = work.z.data() + i * (K + work.V);
    const Real* d_k_minus = work.d_k_minus.data() + i * K;
    Real* d_q_i = d_q.row(i);
    Real* left = work.left.data() + i * K;
    Real* right = work.right.data() + i * K;
#pragma omp simd
    for (int64_t d = 0; d < K; ++d) {
      d_q_i[d] = d_q_plus[d] * from_start[d];
      left[d] = -minus_d_k_plus[d] * from_start[d];
      right[d] = d_k_minus[d] * to_end[d];
    }
  }
  for (int64_t first = 0; first < chunk.rows; first += kKdaBlockRows) {
    const int64_t end = std::min(chunk.rows, first + kKdaBlockRows);
    advance_border(chunk, first, work);
    if (first > 0) differentiate_earlier(first, end, d_q, work);
    differentiate_diagonal(chunk, first, end, d_q, work);
  }
}

// dk and dg. Each row's decay stands in all sums that begin before it: sums from the last row on.
template <typename Real>
void differentiate_decay(const KdaStretch<Real>& chunk, const KdaGradients<Real>& out,
                         int64_t first_row, Buffers<Real>& work) {
  const int64_t K = work.K;
  const Real* gamma = work.from_start.data() + (chunk.rows - 1) * K;
  Real* sum = work.row.data();
  for (int64_t d = 0; d < K; ++d) sum[d] = gamma[d] * work.d_gamma[static_cast<size_t>(d)];
  for (int64_t i = 0; i < chunk.rows; ++i) {
    const Real* k_minus = work.k_minus.data() + i * K;
    const Real* d_k_minus = work.d_k_minus.data() + i * K;
#pragma omp simd
    for (int64_t d = 0; d < K; ++d) sum[d] += k_minus[d] * d_k_minus[d];
  }
  for (int64_t i = chunk.rows - 1; i >= 0; --i) {
    const Real* q = chunk.q.row(i);
    const Real* k = chunk.k.row(i);
    const Real* left = work.left.data() + i * K;
    const Real* right = work.right.data() + i * K;
    const Real* d_q = out.q.row(first_row + i);
    Real* d_k = out.k.row(first_row + i);
    Real* d_g = out.g.row(first_row + i);
#pragma omp simd
    for (int64_t d = 0; d < K; ++d) {
      d_k[d] = left[d] + right[d];
      sum[d] += q[d] * d_q[d] + k[d] * (left[d] - right[d]);
      d_g[d] = sum[d];
    }
  }
}

// The state before each chunk, one after the other.
template <typename Real>
void fill_states(const KdaStretch<Real>& in, const Real* state_before, int64_t state_values,
                 Real* states, Buffers<Real>& work) {
  if (state_before != nullptr) {
    std::copy_n(state_before, state_values, states);
  } else {
    std::fill_n(states, state_values, Real{0});
  }
  for (int64_t idx = 0; idx + 1 < kda_chunks(in.rows); ++idx) {
    const KdaStretch<Real> chunk = kda_chunk(in, idx);
    Real* next = states + (idx + 1) * state_values;
    std::copy_n(states + idx * state_values, state_values, next);
    prepare_chunk(chunk, false, work);
    apply_state(chunk.rows, next, work.V, work);
    advance_state(chunk.rows, next, work.V, work);
  }
}

}  // namespace

template <typename Real>
void kda_gradient_map(const LinearAttentionShape& shape, const KdaStretch<Real>& in,
                      Strip<const Real> d_o, bool with_matrix, Real* map,
                      const KdaScratch<Real>& scratch) {
  Buffers<Real>& work = scratch.buffers();
  const int64_t K = shape.key_width;
  const int64_t columns = shape.value_width + (with_matrix ? K : 0);
  std::fill_n(map, K * columns, Real{0});
  for (int64_t d = 0; with_matrix && d < K; ++d) map[d * columns + shape.value_width + d] = 1;
  for (int64_t idx = kda_chunks(in.rows) - 1; idx >= 0; --idx) {
    const KdaStretch<Real> chunk = kda_chunk(in, idx);
    const Strip<const Real> d_o_chunk{d_o.row(idx * C), d_o.stride};
    prepare_chunk(chunk, true, work);
    fill_d_moved(chunk.rows, d_o_chunk, map, columns, work);
    retreat_state(chunk.rows, d_o_chunk, map, columns, work);
  }
}

template <typename Real>
void kda_backward(const LinearAttentionShape& shape, const KdaStretch<Real>& in,
                  const Real* state_before, Strip<const Real> d_o, const Real* d_state_after,
                  const KdaGradients<Real>& out, Real* d_state_before, Real* states,
                  const KdaScratch<Real>& scratch) {
  Buffers<Real>& work = scratch.buffers();
  const int64_t V = shape.value_width;
  const int64_t state_values = shape.key_width * V;
  fill_states(in, state_before, state_values, states, work);
  Real* d_state = work.state.data();
  if (d_state_after != nullptr) {
    std::copy_n(d_state_after, state_values, d_state);
  } else {
    std::fill_n(d_state, state_values, Real{0});
  }
  for (int64_t idx = kda_chunks(in.rows) - 1; idx >= 0; --idx) {
    const KdaStretch<Real> chunk = kda_chunk(in, idx);
    const Strip<const Real> d_o_chunk{d_o.row(idx * C), d_o.stride};
    const Real* state = states + idx * state_values;
    prepare_chunk(chunk, true, work);
    apply_state(chunk.rows, state, V, work);
    fill_d_moved(chunk.rows, d_o_chunk, d_state, V, work);
    differentiate_products(chunk.rows, d_o_chunk, state, d_state, work);
    retreat_state(chunk.rows, d_o_chunk, d_state, V, work);
    differentiate_solve(chunk, out, idx * C, work);
    differentiate_rows(chunk, {out.q.row(idx * C), out.q.stride}, work);
    differentiate_decay(chunk, out, idx * C, work);
  }
  if (d_state_before != nullptr) std::copy_n(d_state, state_values, d_state_before);
}

int64_t kda_states_before(int64_t rows) {
  return kda_chunks(rows);
}

#define LONGSPAN_INSTANTIATE(Real)                                                              \
  template void kda_gradient_map(const LinearAttentionShape&, const KdaStretch<Real>&,          \
                                 Strip<const Real>, bool, Real*, const KdaScratch<Real>&);      \
  template void kda_backward(const LinearAttentionShape&, const KdaStretch<Real>&, const Real*, \
                             Strip<const Real>, const Real*, const KdaGradients<Real>&, Real*,  \
                             Real*, const KdaScratch<Real>&);
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan
