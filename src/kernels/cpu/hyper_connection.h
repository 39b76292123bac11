// Hyper-connections: a layer's residual is several streams, and small maps made from the streams
// themselves say what a block reads, where it writes, and how the streams mix (mHC).
//
// Per token, with N streams X_i of C numbers and raw = fn rms(flat(X)), in the order N read, N
// write, N x N mix (row: from stream, column: to stream):
//   read = sig(scale_0 raw + base) + e;  write = 2 sig(scale_1 raw + base)
//   mix  = softmax over a row of (scale_2 raw + base), + e; columns / (sum + e);
//          then rounds - 1 times: rows / (sum + e), columns / (sum + e)
//   x_in = sum_i read_i X_i;      X'_j = write_j y + sum_i mix_ij X_i
//
// The caller forms `products` = fn flat(X) with a matrix product; everything else is one pass over
// the streams each way. Backward plays the normalisations again.
//
//   hyper_read_forward(shape, {streams, base, scale}, {0, tokens}, products, {x_in, write, mix});
//
// Shapes: streams [T, N, C], products [T, N (N + 2)], base [N (N + 2)], scale [3]; contiguous.
// Thread contract: pure on disjoint rows (and disjoint partial sums).
#pragma once

#include <cstdint>

#include "base/range.h"

namespace longspan {

struct HyperShape {
  int64_t streams = 0;
  int64_t width = 0;
  int64_t sinkhorn_rounds = 0;  // column normalisations
  double norm_epsilon = 0;      // of the norm of flat(X)
  double epsilon = 0;           // e

  int64_t maps() const { return streams * (streams + 2); }
  int64_t flat_width() const { return streams * width; }
};

inline constexpr int64_t kMaxHyperStreams = 8;
// Rows that share one partial sum of the gradients of base and scale.
inline constexpr int64_t kHyperBlockRows = 256;

template <typename Real>
struct HyperReadInputs {
  const Real* streams;
  const Real* base;
  const Real* scale;
};

template <typename Real>
struct HyperReadOutputs {
  Real* x_in;         // [T, C]
  Real* write;        // [T, N]
  Real* mix;          // [T, N, N]
  Real* inverse_rms;  // [T]
};

// `products` become raw.
template <typename Real>
void hyper_read_forward(const HyperShape& shape, const HyperReadInputs<Real>& inputs, Range rows,
                        Real* products, const HyperReadOutputs<Real>& outputs);

template <typename Real>
struct HyperReadGradients {
  const Real* x_in;
  const Real* write;
  const Real* mix;
};

// Writes the part of dX that does not go through fn, and the gradient of `products`, with which the
// caller adds products_gradient fn to dX and products_gradient^T flat(X) to dfn. `sums`: gradients
// of base, then scale; added to.
template <typename Real>
void hyper_read_backward(const HyperShape& shape, const HyperReadInputs<Real>& inputs,
                         const Real* raw, const Real* inverse_rms,
                         const HyperReadGradients<Real>& gradients, Range rows,
                         Real* streams_gradient, Real* products_gradient, Real* sums);

template <typename Real>
struct HyperWriteInputs {
  const Real* streams;  // [T, N, C]
  const Real* y;        // [T, C]
  const Real* write;    // [T, N]
  const Real* mix;      // [T, N, N]
};

template <typename Real>
void hyper_write_forward(const HyperShape& shape, const HyperWriteInputs<Real>& inputs, Range rows,
                         Real* streams_out);

template <typename Real>
struct HyperWriteGradients {
  Real* streams;
  Real* y;
  Real* write;
  Real* mix;
};

template <typename Real>
void hyper_write_backward(const HyperShape& shape, const HyperWriteInputs<Real>& inputs,
                          const Real* streams_out_gradient, Range rows,
                          const HyperWriteGradients<Real>& gradients);

}  // namespace longspan
