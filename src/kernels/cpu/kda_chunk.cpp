#include "kernels/cpu/kda_chunk.h"

#include "kernels/cpu/block_product.h"

namespace longspan {
namespace {

template <typename Real>
using Buffers = typename KdaScratch<Real>::Buffers;

// The decays that start at the chunk's and at the block's first row, and rows times them.
template <typename Real>
void fill_decayed_rows(const KdaStretch<Real>& chunk, Buffers<Real>& work) {
  const int64_t K = work.K;
  std::vector<Real>& before = work.row;  // sum of g of the blocks before
  Real* local = work.exponent.data();    // sum within the block: not in other use yet
  std::fill(before.begin(), before.end(), Real{0});
  for (int64_t i = 0; i < chunk.rows; ++i) {
    const Real* g = chunk.g.row(i);
    const Real* q = chunk.q.row(i);
    const Real* k = chunk.k.row(i);
    const int64_t at = i * K;
    if (i % kKdaBlockRows == 0) {
      if (i > 0) {
        for (int64_t d = 0; d < K; ++d) before[static_cast<size_t>(d)] += local[d];
      }
      std::fill_n(local, K, Real{0});
    }
    Real* own_decay = work.own_decay.data() + at;
    Real* from_block = work.from_block.data() + at;
    Real* from_start = work.from_start.data() + at;
    Real* q_local = work.q_local.data() + at;
    Real* k_local = work.k_local.data() + at;
    Real* q_plus = work.q_plus.data() + at;
    Real* k_plus = work.k_plus.data() + at;
    const Real* base = before.data();
#pragma omp simd
    for (int64_t d = 0; d < K; ++d) {
      local[d] += g[d];
      own_decay[d] = decay(g[d]);
      from_block[d] = decay(local[d]);
      from_start[d] = decay(base[d] + local[d]);
      q_local[d] = q[d] * from_block[d];
      k_local[d] = k[d] * from_block[d];
      q_plus[d] = q[d] * from_start[d];
      k_plus[d] = k[d] * from_start[d];
    }
  }
}

// B and P of the pairs within the block of rows [first, end).
template <typename Real>
void fill_diagonal_block(const KdaStretch<Real>& chunk, int64_t first, int64_t end,
                         Buffers<Real>& work) {
  const int64_t K = work.K;
  Real* decayed = work.row.data();  // k_j on its way to row i
  for (int64_t j = first; j < end; ++j) {
    std::copy_n(chunk.k.row(j), K, decayed);
    Real on_itself = 0;
    const Real* q_j = chunk.q.row(j);
#pragma omp simd reduction(+ : on_itself)
    for (int64_t d = 0; d < K; ++d) on_itself += q_j[d] * decayed[d];
    work.p[static_cast<size_t>(j * kKdaChunkRows + j)] = on_itself;
    for (int64_t i = j + 1; i < end; ++i) {
      const Real* k_i = chunk.k.row(i);
      const Real* q_i = chunk.q.row(i);
      const Real* own_decay = work.own_decay.data() + i * K;
      Real of_k = 0;
      Real of_q = 0;
#pragma omp simd reduction(+ : of_k, of_q)
      for (int64_t d = 0; d < K; ++d) {
        decayed[d] *= own_decay[d];
        of_k += k_i[d] * decayed[d];
        of_q += q_i[d] * decayed[d];
      }
      work.b[static_cast<size_t>(i * kKdaChunkRows + j)] = of_k;
      work.p[static_cast<size_t>(i * kKdaChunkRows + j)] = of_q;
    }
  }
}

template <typename Real>
void fill_pairs(const KdaStretch<Real>& chunk, bool with_p, Buffers<Real>& work) {
  const int64_t K = work.K;
  constexpr int64_t C = kKdaChunkRows;
  std::fill(work.b.begin(), work.b.end(), Real{0});
  std::fill(work.p.begin(), work.p.end(), Real{0});
  for (int64_t first = 0; first < chunk.rows; first += kKdaBlockRows) {
    const int64_t end = std::min(chunk.rows, first + kKdaBlockRows);
    advance_border(chunk, first, work);
    if (first > 0) {
      transpose(work.earlier_k.data(), first, K, K, C, work.transposed.data());
      const ProductSize size{end - first, first, K};
      multiply<Start::kZero, Real>(size, {work.k_local.data() + first * K, K, 1},
                                   {work.transposed.data(), C}, {work.b.data() + first * C, C});
      if (with_p) {
        multiply<Start::kZero, Real>(size, {work.q_local.data() + first * K, K, 1},
                                     {work.transposed.data(), C}, {work.p.data() + first * C, C});
      }
    }
    fill_diagonal_block(chunk, first, end, work);
  }
  advance_border(chunk, chunk.rows, work);
  const size_t values = static_cast<size_t>(chunk.rows * K);
  std::copy_n(work.earlier_decay.begin(), values, work.to_end.begin());
  std::copy_n(work.earlier_k.begin(), values, work.k_minus.begin());
}

// wu = (I + A)^-1 wu, block of rows by block.
template <typename Real>
void solve(const KdaStretch<Real>& chunk, Buffers<Real>& work) {
  constexpr int64_t C = kKdaChunkRows;
  const int64_t columns = work.K + work.V;
  for (int64_t first = 0; first < chunk.rows; first += kKdaBlockRows) {
    const int64_t end = std::min(chunk.rows, first + kKdaBlockRows);
    if (first > 0) {
      Real* factors = work.transposed.data();  // -A of the block's rows and earlier ones
      for (int64_t i = first; i < end; ++i) {
        const Real* b = work.b.data() + i * C;
        for (int64_t j = 0; j < first; ++j) {
          factors[(i - first) * C + j] = -*chunk.beta.row(i) * b[j];
        }
      }
      multiply<Start::kKeep, Real>({end - first, columns, first}, {factors, C, 1},
                                   {work.wu.data(), columns},
                                   {work.wu.data() + first * columns, columns});
    }
    for (int64_t i = first; i < end; ++i) {
      Real* x_i = work.wu.data() + i * columns;
      for (int64_t j = first; j < i; ++j) {
        const Real factor = -*chunk.beta.row(i) * work.b[static_cast<size_t>(i * C + j)];
        const Real* x_j = work.wu.data() + j * columns;
#pragma omp simd
        for (int64_t c = 0; c < columns; ++c) x_i[c] += factor * x_j[c];
      }
    }
  }
}

}  // namespace

template <typename Real>
KdaScratch<Real>::Buffers::Buffers(const LinearAttentionShape& shape)
    : K(shape.key_width), V(shape.value_width) {
  constexpr int64_t C = kKdaChunkRows;
  const auto size = [](std::vector<Real>& values, int64_t count) {
    values.resize(static_cast<size_t>(count));
  };
  for (std::vector<Real>* rows :
       {&own_decay, &from_block, &from_start, &to_end, &q_plus, &k_plus, &k_minus, &exponent,
        &earlier_decay, &earlier_k, &q_local, &k_local, &d_q_plus, &d_k_minus, &left, &right}) {
    size(*rows, C * K);
  }
  for (std::vector<Real>* square : {&b, &p, &d_b, &d_p}) size(*square, C * C);
  for (std::vector<Real>* rows : {&wu, &moved, &d_moved, &z}) size(*rows, C * (K + V));
  size(transposed, std::max((K + V) * std::max(C, std::max(K, V)), kKdaBlockRows * C));
  size(row, K);
  size(d_gamma, K);
  size(state, K * (K + V));
}

template <typename Real>
KdaScratch<Real>::KdaScratch(const LinearAttentionShape& shape)
    : buffers_(std::make_unique<Buffers>(shape)) {}

template <typename Real>
KdaScratch<Real>::~KdaScratch() = default;

template <typename Real>
void transpose(const Real* x, int64_t rows, int64_t columns, int64_t x_stride, int64_t stride,
               Real* transposed) {
  // In squares that stay in the cache.
  constexpr int64_t kSide = 16;
  for (int64_t first_row = 0; first_row < rows; first_row += kSide) {
    const int64_t end_row = std::min(rows, first_row + kSide);
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t row = first_row; row < end_row; ++row) {
        transposed[c * stride + row] = x[row * x_stride + c];
      }
    }
  }
}

template <typename Real>
void advance_border(const KdaStretch<Real>& chunk, int64_t first_row,
                    typename KdaScratch<Real>::Buffers& work) {
  if (first_row == 0) return;
  const int64_t K = work.K;
  const int64_t first_of_block = (first_row - 1) / kKdaBlockRows * kKdaBlockRows;
  // Within the block before: sums from the row after up to the border, the last row first.
  Real* exponents = work.exponent.data();
  std::fill_n(exponents + (first_row - 1) * K, K, Real{0});
  for (int64_t j = first_row - 2; j >= first_of_block; --j) {
    const Real* g = chunk.g.row(j + 1);
#pragma omp simd
    for (int64_t d = 0; d < K; ++d) {
      exponents[j * K + d] = exponents[(j + 1) * K + d] + g[d];
    }
  }
  Real* whole_block = work.row.data();
  const Real* first_g = chunk.g.row(first_of_block);
  for (int64_t d = 0; d < K; ++d) {
    whole_block[d] = exponents[first_of_block * K + d] + first_g[d];
  }
  for (int64_t j = 0; j < first_row; ++j) {
    Real* exponent = exponents + j * K;
    Real* decayed = work.earlier_decay.data() + j * K;
    Real* decayed_k = work.earlier_k.data() + j * K;
    const Real* k = chunk.k.row(j);
    const Real added = j < first_of_block ? Real{1} : Real{0};
#pragma omp simd
    for (int64_t d = 0; d < K; ++d) {
      exponent[d] += added * whole_block[d];
      decayed[d] = decay(exponent[d]);
      decayed_k[d] = k[d] * decayed[d];
    }
  }
}

template <typename Real>
void prepare_chunk(const KdaStretch<Real>& chunk, bool with_p,
                   typename KdaScratch<Real>::Buffers& work) {
  fill_decayed_rows(chunk, work);
  fill_pairs(chunk, with_p, work);
  const int64_t K = work.K;
  const int64_t V = work.V;
  for (int64_t i = 0; i < chunk.rows; ++i) {
    const Real beta = *chunk.beta.row(i);
    const Real* v = chunk.v.row(i);
    Real* row = work.wu.data() + i * (K + V);
    for (int64_t d = 0; d < K; ++d) row[d] = -beta * work.k_plus[static_cast<size_t>(i * K + d)];
    for (int64_t c = 0; c < V; ++c) row[K + c] = beta * v[c];
  }
  solve(chunk, work);
}

#define LONGSPAN_INSTANTIATE(Real)                                                            \
  template class KdaScratch<Real>;                                                            \
  template void transpose(const Real*, int64_t, int64_t, int64_t, int64_t, Real*);            \
  template void advance_border(const KdaStretch<Real>&, int64_t, KdaScratch<Real>::Buffers&); \
  template void prepare_chunk(const KdaStretch<Real>&, bool, KdaScratch<Real>::Buffers&);
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan
