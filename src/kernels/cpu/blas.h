// Matrix products of row-major blocks through BLAS, the one that libtorch carries.
//
// Why: torch's own entry points cost microseconds for each small product; sgemm does not. Blocks
// lie inside larger arrays: `stride` is the distance between their rows, in elements.
//
//   multiply_transposed(rows, cols, depth, scale, {q, q_stride}, {k, k_stride}, 0, {s, s_stride});
//
// C = alpha A op(B) + beta C; with beta = 0, C is only written. Whoever calls these links to a
// library that exports sgemm_ and dgemm_ (torch::cpu).
// Thread contract: pure on C. Inside a parallel region the product stays on its thread.
#pragma once

#include <cstdint>

#include "base/narrow.h"

// NOLINTBEGIN: names of the Fortran interface
extern "C" {
void sgemm_(const char* transpose_a, const char* transpose_b, const int* m, const int* n,
            const int* k, const float* alpha, const float* a, const int* lda, const float* b,
            const int* ldb, const float* beta, float* c, const int* ldc);
void dgemm_(const char* transpose_a, const char* transpose_b, const int* m, const int* n,
            const int* k, const double* alpha, const double* a, const int* lda, const double* b,
            const int* ldb, const double* beta, double* c, const int* ldc);
}
// NOLINTEND

namespace longspan {

template <typename Real>
struct Block {
  Real* data;
  int64_t stride;
};

// Column-major, as BLAS has it: C^T = op(B)^T op(A)^T.
template <typename Real>
inline void multiply_column_major(char transpose_a, char transpose_b, int64_t m, int64_t n,
                                  int64_t k, Real alpha, Block<const Real> a, Block<const Real> b,
                                  Real beta, Block<Real> c) {
  const int m32 = narrow<int>(m);
  const int n32 = narrow<int>(n);
  const int k32 = narrow<int>(k);
  const int lda = narrow<int>(a.stride);
  const int ldb = narrow<int>(b.stride);
  const int ldc = narrow<int>(c.stride);
  if constexpr (sizeof(Real) == sizeof(float)) {
    sgemm_(&transpose_a, &transpose_b, &m32, &n32, &k32, &alpha, a.data, &lda, b.data, &ldb, &beta,
           c.data, &ldc);
  } else {
    dgemm_(&transpose_a, &transpose_b, &m32, &n32, &k32, &alpha, a.data, &lda, b.data, &ldb, &beta,
           c.data, &ldc);
  }
}

// C[rows, cols] = alpha A[rows, depth] B[depth, cols] + beta C.
template <typename Real>
inline void multiply(int64_t rows, int64_t cols, int64_t depth, Real alpha, Block<const Real> a,
                     Block<const Real> b, Real beta, Block<Real> c) {
  multiply_column_major('N', 'N', cols, rows, depth, alpha, b, a, beta, c);
}

// C[rows, cols] = alpha A[rows, depth] B[cols, depth]^T + beta C.
template <typename Real>
inline void multiply_transposed(int64_t rows, int64_t cols, int64_t depth, Real alpha,
                                Block<const Real> a, Block<const Real> b, Real beta,
                                Block<Real> c) {
  multiply_column_major('T', 'N', cols, rows, depth, alpha, b, a, beta, c);
}

// C[rows, cols] = alpha A[depth, rows]^T B[depth, cols] + beta C.
template <typename Real>
inline void transposed_multiply(int64_t rows, int64_t cols, int64_t depth, Real alpha,
                                Block<const Real> a, Block<const Real> b, Real beta,
                                Block<Real> c) {
  multiply_column_major('N', 'T', cols, rows, depth, alpha, b, a, beta, c);
}

}  // namespace longspan
