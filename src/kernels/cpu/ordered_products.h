// Matrix products whose every sum has one order: the bits depend neither on the number of threads
// nor on how rows are dealt to them.
//
// Why: a BLAS picks its blocking by shape and threads. Where a product decides a choice (the
// router's logits) or feeds an exponential (the maps of hyper-connections), another thread count
// must not give other bits. The products here are thin, one factor has few rows, so nothing is
// lost.
//
//   ordered_product(x, w_transposed, {0, tokens}, {k, m}, y);            // y = x W^T
//   ordered_add_product(y_gradient, w, {0, tokens}, {k, m}, x_gradient); // dx += dy W
//   ordered_add_outer(y_gradient, x, tokens, {k, m}, {0, k}, w_gradient);// dW += dy^T x
//
// Shapes: x [T, K], y [T, M], w [M, K], w_transposed [K, M]; contiguous.
// Thread contract: pure on disjoint rows or columns. Parts begin at multiples of kOrderedRows or
// kOrderedColumns: the compiler may fuse multiplications and additions otherwise in a narrow tile
// than in a wide one, so a row must always lie in the same tile.
#pragma once

#include <cstdint>

#include "base/range.h"

namespace longspan {

inline constexpr int64_t kOrderedRows = 30;  // five tiles of kernels/cpu/block_product.h
inline constexpr int64_t kOrderedColumns = 512;

struct OrderedShape {
  int64_t k = 0;  // width of x
  int64_t m = 0;  // width of y
};

template <typename Real>
void ordered_product(const Real* x, const Real* w_transposed, Range rows, OrderedShape shape,
                     Real* y);

template <typename Real>
void ordered_add_product(const Real* y, const Real* w, Range rows, OrderedShape shape, Real* x);

// Sums over blocks of tokens, then the blocks in order. Columns of x and w_gradient.
template <typename Real>
void ordered_add_outer(const Real* y, const Real* x, int64_t tokens, OrderedShape shape,
                       Range columns, Real* w_gradient);

}  // namespace longspan
