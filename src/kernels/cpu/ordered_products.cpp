#include "kernels/cpu/ordered_products.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/block_product.h"

namespace longspan {
namespace {

static_assert(kOrderedRows % block_product::kTileRows == 0);
// Rows of x at work at once: with kOrderedColumns they fit the second cache level.
constexpr int64_t kRows = kOrderedRows;
// Depth at work at once in the products over x's width.
constexpr int64_t kDepth = 256;
// Tokens that share one partial sum.
constexpr int64_t kSumTokens = 8 * kRows;

}  // namespace

template <typename Real>
void ordered_product(const Real* x, const Real* w_transposed, Range rows, OrderedShape shape,
                     Real* y) {
  for (int64_t row = rows.begin; row < rows.end; row += kRows) {
    const int64_t count = std::min(kRows, rows.end - row);
    const ProductRows<Real> result{y + row * shape.m, shape.m};
    for (int64_t depth = 0; depth < shape.k; depth += kDepth) {
      const ProductSize size{count, shape.m, std::min(kDepth, shape.k - depth)};
      const LeftFactor<Real> left{x + row * shape.k + depth, shape.k, 1};
      const RightFactor<Real> right{w_transposed + depth * shape.m, shape.m};
      if (depth == 0) {
        multiply<Start::kZero>(size, left, right, result);
      } else {
        multiply<Start::kKeep>(size, left, right, result);
      }
    }
  }
}

template <typename Real>
void ordered_add_product(const Real* y, const Real* w, Range rows, OrderedShape shape, Real* x) {
  for (int64_t row = rows.begin; row < rows.end; row += kRows) {
    const int64_t count = std::min(kRows, rows.end - row);
    multiply<Start::kKeep>(
        {count, shape.k, shape.m}, LeftFactor<Real>{y + row * shape.m, shape.m, 1},
        RightFactor<Real>{w, shape.k}, ProductRows<Real>{x + row * shape.k, shape.k});
  }
}

template <typename Real>
void ordered_add_outer(const Real* y, const Real* x, int64_t tokens, OrderedShape shape,
                       Range columns, Real* w_gradient) {
  std::vector<Real> partial(static_cast<size_t>(shape.m * kOrderedColumns));
  for (int64_t column = columns.begin; column < columns.end; column += kOrderedColumns) {
    const int64_t width = std::min(kOrderedColumns, columns.end - column);
    for (int64_t block = 0; block < tokens; block += kSumTokens) {
      std::fill(partial.begin(), partial.end(), Real{0});
      const int64_t block_end = std::min(tokens, block + kSumTokens);
      for (int64_t token = block; token < block_end; token += kRows) {
        multiply<Start::kKeep>({shape.m, width, std::min(kRows, block_end - token)},
                               LeftFactor<Real>{y + token * shape.m, 1, shape.m},
                               RightFactor<Real>{x + token * shape.k + column, shape.k},
                               ProductRows<Real>{partial.data(), kOrderedColumns});
      }
      for (int64_t m = 0; m < shape.m; ++m) {
        const Real* in = partial.data() + m * kOrderedColumns;
        Real* out = w_gradient + m * shape.k + column;
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) out[c] += in[c];
      }
    }
  }
}

#define LONGSPAN_INSTANTIATE(Real)                                                         \
  template void ordered_product(const Real*, const Real*, Range, OrderedShape, Real*);     \
  template void ordered_add_product(const Real*, const Real*, Range, OrderedShape, Real*); \
  template void ordered_add_outer(const Real*, const Real*, int64_t, OrderedShape, Range, Real*);
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan
