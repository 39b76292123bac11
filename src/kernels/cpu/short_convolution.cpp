#include "kernels/cpu/short_convolution.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/vector_math.h"

namespace longspan {
namespace {

// Rows that share one partial sum of the weight's gradient.
constexpr int64_t kBlockRows = 256;

// Row `at` of the stretch, which may stand before it; null where there are only zeros.
template <typename Real>
const Real* input_row(const ConvolutionInput<Real>& input, int64_t at) {
  if (at >= 0) return input.x.row(at);
  return at >= -input.before_rows ? input.before.row(input.before_rows + at) : nullptr;
}

// sum[c] += a[c] b[c]
template <typename Real>
void add_products(const Real* a, const Real* b, int64_t width, Real* sum) {
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) sum[c] += a[c] * b[c];
}

template <typename Real>
void convolve_row(const ConvolutionInput<Real>& input, int64_t row, int64_t width, int64_t taps,
                  const Real* weight, Real* z) {
  std::fill_n(z, width, Real{0});
  for (int64_t tap = 0; tap < taps; ++tap) {
    const Real* x = input_row(input, row - taps + 1 + tap);
    if (x != nullptr) add_products(x, weight + tap * width, width, z);
  }
}

}  // namespace

template <typename Real>
void short_convolution_forward(const ConvolutionInput<Real>& input, int64_t rows, int64_t width,
                               int64_t taps, const Real* weight, Strip<Real> y) {
  for (int64_t row = 0; row < rows; ++row) {
    Real* z = y.row(row);
    convolve_row(input, row, width, taps, weight, z);
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) z[c] *= vector_logistic(z[c]);
  }
}

template <typename Real>
void short_convolution_backward(const ConvolutionInput<Real>& input, int64_t rows, int64_t width,
                                int64_t taps, const Real* weight, Strip<const Real> dy,
                                Strip<Real> dx, Strip<Real> dbefore, Real* weight_gradient) {
  std::vector<Real> dz(static_cast<size_t>(width));
  std::vector<Real> partial(static_cast<size_t>(taps * width));
  for (int64_t first = 0; first < rows; first += kBlockRows) {
    std::fill(partial.begin(), partial.end(), Real{0});
    for (int64_t row = first; row < std::min(rows, first + kBlockRows); ++row) {
      convolve_row(input, row, width, taps, weight, dz.data());
      const Real* dy_row = dy.row(row);
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) {
        const Real logistic = vector_logistic(dz[static_cast<size_t>(c)]);
        // silu'(z) = s + z s (1 - s)
        dz[static_cast<size_t>(c)] =
            dy_row[c] * (logistic + dz[static_cast<size_t>(c)] * logistic * (Real{1} - logistic));
      }
      std::fill_n(dx.row(row), width, Real{0});
      for (int64_t tap = 0; tap < taps; ++tap) {
        const int64_t source = row - taps + 1 + tap;
        const Real* x = input_row(input, source);
        if (x == nullptr) continue;
        Real* dsource = source >= 0 ? dx.row(source) : dbefore.row(input.before_rows + source);
        add_products(dz.data(), weight + tap * width, width, dsource);
        add_products(dz.data(), x, width, partial.data() + tap * width);
      }
    }
    for (int64_t i = 0; i < taps * width; ++i)
      weight_gradient[i] += partial[static_cast<size_t>(i)];
  }
}

#define LONGSPAN_INSTANTIATE(Real)                                                               \
  template void short_convolution_forward(const ConvolutionInput<Real>&, int64_t, int64_t,       \
                                          int64_t, const Real*, Strip<Real>);                    \
  template void short_convolution_backward(const ConvolutionInput<Real>&, int64_t, int64_t,      \
                                           int64_t, const Real*, Strip<const Real>, Strip<Real>, \
                                           Strip<Real>, Real*);
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan
