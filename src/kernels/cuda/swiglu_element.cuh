// Private to kernels/cuda: SwiGLU of one pair of numbers, with a limit (kernels/cpu/swiglu.h).
//
//   y = swiglu_of(gate, up, limit);
//   const SwigluParts<A> parts = swiglu_backward_of(gate, up, dy, limit);
//
// An infinite limit changes nothing, and NaN stays NaN.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace longspan::cuda {

template <typename A>
__device__ inline A at_most(A value, A limit) {
  return value > limit ? limit : value;
}

template <typename A>
__device__ inline A clamped(A value, A limit) {
  return at_most(value < -limit ? -limit : value, limit);
}

template <typename A>
__device__ inline A swiglu_of(A gate, A up, A limit) {
  const A g = at_most(gate, limit);
  return g * (A{1} / (A{1} + exp(-g))) * clamped(up, limit);
}

template <typename A>
struct SwigluParts {
  A y;
  A dgate;
  A dup;
};

template <typename A>
__device__ inline SwigluParts<A> swiglu_backward_of(A gate, A up, A dy, A limit) {
  const A g = at_most(gate, limit);
  const A u = clamped(up, limit);
  const A share = A{1} / (A{1} + exp(-g));
  const A silu = g * share;
  // silu'(g) = s + g s (1 - s)
  const A dgate = dy * u * (share + silu * (A{1} - share));
  return {silu * u, gate > limit ? A{0} : dgate, up > limit || up < -limit ? A{0} : dy * silu};
}

}  // namespace longspan::cuda
