// Short causal convolution of every channel by itself, then SiLU:
//   y[t] = silu(sum_j weight[j] x[t - taps + 1 + j]).
//
// Why by stretches: rows of a piece belong to several documents, and each document starts with
// zeros before it. A stretch is the part of one document that lies in a piece; the up to taps - 1
// rows of the document before it (other ranks hold them) come as `before`.
//
//   ConvolutionInput<float> in{.x = {x, stride}, .before = {b, b_stride}, .before_rows = 3};
//   short_convolution_forward(in, rows, width, taps, weight, y);
//
// Channels stand side by side, weights as [taps, width]. Sums of the weight's gradient run over
// fixed blocks of rows in order. The backward computes the convolution again: nothing is kept.
// Thread contract: pure on disjoint results; one call per stretch and group of channels.
#pragma once

#include <cstdint>

#include "kernels/linear_attention_shape.h"

namespace longspan {

template <typename Real>
struct ConvolutionInput {
  Strip<const Real> x;
  Strip<const Real> before;  // its last row stands right before x
  int64_t before_rows = 0;   // < taps; rows before those are zeros
};

template <typename Real>
void short_convolution_forward(const ConvolutionInput<Real>& input, int64_t rows, int64_t width,
                               int64_t taps, const Real* weight, Strip<Real> y);

// dx is written; dbefore (rows as in `before`) and weight_gradient [taps, width] are added to.
template <typename Real>
void short_convolution_backward(const ConvolutionInput<Real>& input, int64_t rows, int64_t width,
                                int64_t taps, const Real* weight, Strip<const Real> dy,
                                Strip<Real> dx, Strip<Real> dbefore, Real* weight_gradient);

}  // namespace longspan
