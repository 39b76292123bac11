#include "kernels/cpu/rms_norm.h"

#include <cmath>

namespace longspan {

template <typename Real>
void rms_norm_forward(const Real* x, const Real* weight, double epsilon, Range rows, int64_t width,
                      Real* y, Real* inverse_rms) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const Real* in = x + row * width;
    Real* out = y + row * width;
    Real squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t c = 0; c < width; ++c) squares += in[c] * in[c];
    const Real scale =
        Real{1} / std::sqrt(squares / static_cast<Real>(width) + static_cast<Real>(epsilon));
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) out[c] = in[c] * scale * weight[c];
    inverse_rms[row] = scale;
  }
}

template <typename Real>
void rms_norm_backward(const Real* x, const Real* weight, const Real* inverse_rms, const Real* dy,
                       Range rows, int64_t width, Real* dx, Real* y, Real* weight_gradient) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const Real* in = x + row * width;
    const Real* grad = dy + row * width;
    Real* out = dx + row * width;
    const Real scale = inverse_rms[row];
    Real dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t c = 0; c < width; ++c) dot += grad[c] * weight[c] * in[c];
    const Real pull = dot * scale * scale / static_cast<Real>(width);
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) weight_gradient[c] += grad[c] * (in[c] * scale);
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) out[c] = scale * (grad[c] * weight[c] - pull * in[c]);
    if (y != nullptr) {
      Real* again = y + row * width;
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) again[c] = in[c] * scale * weight[c];
    }
  }
}

template <typename Real>
void add_partials(const Real* partials, int64_t count, int64_t width, Real* sum) {
  for (int64_t row = 0; row < count; ++row) {
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) sum[c] += partials[row * width + c];
  }
}

#define LONGSPAN_INSTANTIATE(Real)                                                                \
  template void add_partials(const Real*, int64_t, int64_t, Real*);                               \
  template void rms_norm_forward(const Real*, const Real*, double, Range, int64_t, Real*, Real*); \
  template void rms_norm_backward(const Real*, const Real*, const Real*, const Real*, Range,      \
                                  int64_t, Real*, Real*, Real*);
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan
