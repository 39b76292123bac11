#include "kernels/cpu/swiglu.h"

#include <cstdint>

#include "kernels/cpu/vector_math.h"

namespace longspan {

namespace {

// NaN stays NaN, and an infinite limit changes nothing.
template <typename Real>
Real at_most(Real value, Real limit) {
  return value > limit ? limit : value;
}

template <typename Real>
Real clamped(Real value, Real limit) {
  return at_most(value < -limit ? -limit : value, limit);
}

}  // namespace

template <typename Real>
void swiglu_forward(const Real* gate, const Real* up, double limit, Range elements, Real* y) {
  const Real bound = static_cast<Real>(limit);
#pragma omp simd
  for (int64_t i = elements.begin; i < elements.end; ++i) {
    const Real g = at_most(gate[i], bound);
    y[i] = g * vector_logistic(g) * clamped(up[i], bound);
  }
}

template <typename Real>
void swiglu_backward(const Real* gate, const Real* up, double limit, const Real* dy, Range elements,
                     Real* y, Real* dgate, Real* dup) {
  const Real bound = static_cast<Real>(limit);
#pragma omp simd
  for (int64_t i = elements.begin; i < elements.end; ++i) {
    const Real g = at_most(gate[i], bound);
    const Real u = clamped(up[i], bound);
    const Real logistic = vector_logistic(g);
    const Real silu = g * logistic;
    const Real grad = dy[i];
    const Real up_grad = grad * silu;
    // silu'(g) = s + g s (1 - s)
    const Real gate_grad = grad * u * (logistic + silu * (Real{1} - logistic));
    y[i] = silu * u;
    dgate[i] = gate[i] > bound ? Real{0} : gate_grad;
    dup[i] = up[i] > bound || up[i] < -bound ? Real{0} : up_grad;
  }
}

#define LONGSPAN_INSTANTIATE(Real)                                                           \
  template void swiglu_forward(const Real*, const Real*, double, Range, Real*);              \
  template void swiglu_backward(const Real*, const Real*, double, const Real*, Range, Real*, \
                                Real*, Real*);
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan
