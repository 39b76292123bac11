// SwiGLU, the gated activation of a feed-forward layer: y = silu(gate) * up, element by element.
// With a limit y = silu(min(gate, limit)) * clamp(up, -limit, limit); a clamped number gets no
// gradient.
//
// Why own kernels: forward is one pass over three arrays; backward gives both gradients and y again
// from one exponential, so nobody stores y.
//
//   swiglu_forward(gate, up, kNoSwigluLimit, {0, n}, y);
//   swiglu_backward(gate, up, kNoSwigluLimit, dy, {0, n}, y, dgate, dup);
//
// Thread contract: pure on disjoint ranges.
#pragma once

#include <limits>

#include "base/range.h"

namespace longspan {

inline constexpr double kNoSwigluLimit = std::numeric_limits<double>::infinity();

template <typename Real>
void swiglu_forward(const Real* gate, const Real* up, double limit, Range elements, Real* y);

// All three results are written; `dup` may be `dy`.
template <typename Real>
void swiglu_backward(const Real* gate, const Real* up, double limit, const Real* dy, Range elements,
                     Real* y, Real* dgate, Real* dup);

}  // namespace longspan
