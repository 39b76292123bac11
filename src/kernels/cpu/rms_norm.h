// RMSNorm on rows: y = x / sqrt(mean(x^2) + epsilon) * weight.
//
// Why own kernels: one pass each way instead of six tensor operations; forward keeps one number a
// row (the inverse RMS), and backward can give y again on its way, so nobody stores y.
// The norm of single heads is the same operation on rows of one head's width.
//
//   rms_norm_forward(x, weight, 1e-5, {0, rows}, width, y, inverse_rms);
//   rms_norm_backward(x, weight, inverse_rms, dy, {0, rows}, width, dx, y, partial);
//
// Shapes: rows x width, contiguous; `Range` selects rows; every row is computed by itself, so the
// bits do not depend on how rows are dealt to threads. The weight's gradient is a sum over rows:
// callers give each kRmsNormBlockRows rows a partial of their own, and add the partials in order.
// Thread contract: pure on disjoint rows (and disjoint partials).
#pragma once

#include <cstdint>

#include "base/range.h"

namespace longspan {

// Rows that share one partial sum of the weight's gradient.
inline constexpr int64_t kRmsNormBlockRows = 256;

template <typename Real>
void rms_norm_forward(const Real* x, const Real* weight, double epsilon, Range rows, int64_t width,
                      Real* y, Real* inverse_rms);

// dx is written, weight_gradient[width] is added to. y, if not null, gets the forward's result, the
// same bits. dx may be dy, and y may not overlap any input.
template <typename Real>
void rms_norm_backward(const Real* x, const Real* weight, const Real* inverse_rms, const Real* dy,
                       Range rows, int64_t width, Real* dx, Real* y, Real* weight_gradient);

// sum[c] += partials[0][c], then partials[1][c], ...
template <typename Real>
void add_partials(const Real* partials, int64_t count, int64_t width, Real* sum);

}  // namespace longspan
