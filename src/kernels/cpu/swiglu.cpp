#include "kernels/cpu/swiglu.h"

#include <cstdint>

#include "kernels/cpu/vector_math.h"

namespace longspan {

template <typename Real>
void swiglu_forward(const Real* gate, const Real* up, Range elements, Real* y) {
#pragma omp simd
  for (int64_t i = elements.begin; i < elements.end; ++i) {
    y[i] = gate[i] * vector_logistic(gate[i]) * up[i];
  }
}

template <typename Real>
void swiglu_backward(const Real* gate, const Real* up, const Real* dy, Range elements, Real* y,
                     Real* dgate, Real* dup) {
#pragma omp simd
  for (int64_t i = elements.begin; i < elements.end; ++i) {
    const Real logistic = vector_logistic(gate[i]);
    const Real silu = gate[i] * logistic;
    const Real grad = dy[i];
    // silu'(g) = s + g s (1 - s)
    dgate[i] = grad * up[i] * (logistic + silu * (Real{1} - logistic));
    y[i] = silu * up[i];
    dup[i] = grad * silu;
  }
}

#define LONGSPAN_INSTANTIATE(Real)                                      \
  template void swiglu_forward(const Real*, const Real*, Range, Real*); \
  template void swiglu_backward(const Real*, const Real*, const Real*, Range, Real*, Real*, Real*);
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan
