// Private to the KDA kernels: what one chunk of up to 64 rows gives before any state is known.
//
// With G the sum of g from the chunk's first row on, inclusive, and C its last row:
//   Q+ = q exp(G), K+ = k exp(G), K- = k exp(G_C - G), gamma = exp(G_C),
//   B_ij = sum_d k_id k_jd exp(G_id - G_jd) for i > j, P_ij the same of q and k for i >= j,
//   A_ij = beta_i B_ij,   -W = (I + A)^-1 (-beta K+),   U = (I + A)^-1 (beta v)
//
// Numbers: exp(-G_j) alone may overflow, and differences of long sums lose bits. Rows are therefore
// taken in blocks of 16 with sums that start at block borders: for a query block and an earlier
// row, one factor is exp(sum from the block's start), the other exp(sum up to it), both at most 1;
// within a block the decays themselves are multiplied, row by row.
// Thread contract: as kda.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cpu/kda.h"
#include "kernels/cpu/vector_math.h"

namespace longspan {

inline constexpr int64_t kKdaChunkRows = 64;
inline constexpr int64_t kKdaBlockRows = 16;

// Matrices of C = kKdaChunkRows rows; squares have rows of C values.
template <typename Real>
struct KdaScratch<Real>::Buffers {
  explicit Buffers(const LinearAttentionShape& shape);

  int64_t K;
  int64_t V;
  std::vector<Real> own_decay;   // exp(g) [C, K]
  std::vector<Real> from_block;  // exp(sum of g from the row's block's start) [C, K]
  std::vector<Real> from_start;  // exp(G) [C, K]
  std::vector<Real> to_end;      // exp(G_C - G) [C, K]
  std::vector<Real> q_plus;      // [C, K]
  std::vector<Real> k_plus;      // [C, K]
  std::vector<Real> k_minus;     // [C, K]
  std::vector<Real> b;           // [C, C], zeros on and above the diagonal
  std::vector<Real> p;           // [C, C], zeros above the diagonal
  std::vector<Real> wu;          // -W | U [C, K + V]
  // Of a query block: its rows and earlier ones, each decayed to the border between them.
  std::vector<Real> exponent;       // sum of g after the earlier row up to the border [C, K]
  std::vector<Real> earlier_decay;  // its exp
  std::vector<Real> earlier_k;      // k earlier_decay [C, K]
  std::vector<Real> q_local;        // q from_block [C, K]
  std::vector<Real> k_local;        // k from_block [C, K]
  // Of single steps.
  std::vector<Real> transposed;  // of any matrix here
  std::vector<Real> row;         // [K]
  std::vector<Real> moved;       // what the state adds, U - W S [C, V + K]
  std::vector<Real> state;       // [K, V + K]
  // Of backward.
  std::vector<Real> d_moved;    // [C, V + K]
  std::vector<Real> z;          // [C, K + V]
  std::vector<Real> d_q_plus;   // [C, K]
  std::vector<Real> d_k_minus;  // [C, K]
  std::vector<Real> d_b;        // [C, C]
  std::vector<Real> d_p;        // [C, C]
  std::vector<Real> left;       // gradient of k as the later row of a pair [C, K]
  std::vector<Real> right;      // as the earlier row [C, K]
  std::vector<Real> d_gamma;    // [K]
};

// exp of a sum of logarithms of decays. Below e^-80, which is nothing beside any other term, it
// stays there: in float32 products with smaller numbers would be denormal, and slow.
template <typename Real>
inline Real decay(Real exponent) {
  return vector_exp(exponent < Real{-80} ? Real{-80} : exponent);
}

inline int64_t kda_chunks(int64_t rows) {
  return (rows + kKdaChunkRows - 1) / kKdaChunkRows;
}

// Chunk `idx` of a stretch.
template <typename Real>
KdaStretch<Real> kda_chunk(const KdaStretch<Real>& in, int64_t idx) {
  const int64_t first = idx * kKdaChunkRows;
  const auto from = [&](const Strip<const Real>& strip) {
    return Strip<const Real>{strip.row(first), strip.stride};
  };
  return {std::min(kKdaChunkRows, in.rows - first),
          from(in.q),
          from(in.k),
          from(in.v),
          from(in.g),
          from(in.beta)};
}

// Fills the chunk's buffers, from `from_block` to `wu`; P only if wanted.
template <typename Real>
void prepare_chunk(const KdaStretch<Real>& chunk, bool with_p,
                   typename KdaScratch<Real>::Buffers& work);

// To be called for first_row = 0, 16, ... and last with the number of rows: `exponent`,
// `earlier_decay` and `earlier_k` of all rows before that row.
template <typename Real>
void advance_border(const KdaStretch<Real>& chunk, int64_t first_row,
                    typename KdaScratch<Real>::Buffers& work);

// moved [rows, columns] = U - W S: what a state [K, columns] adds to itself. Columns from V on have
// no U.
template <typename Real>
void apply_state(int64_t rows, const Real* state, int64_t columns,
                 typename KdaScratch<Real>::Buffers& work);

// S = gamma S + K-^T moved.
template <typename Real>
void advance_state(int64_t rows, Real* state, int64_t columns,
                   typename KdaScratch<Real>::Buffers& work);

// transposed[c][row] = x[row][c], the result's rows of `stride` values.
template <typename Real>
void transpose(const Real* x, int64_t rows, int64_t columns, int64_t x_stride, int64_t stride,
               Real* transposed);

}  // namespace longspan
