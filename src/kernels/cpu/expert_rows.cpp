#include "kernels/cpu/expert_rows.h"

#include <algorithm>

namespace longspan {

template <typename Real>
void gather_rows(const Real* source, const int64_t* places, Range rows, int64_t width,
                 Real* packed) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    std::copy_n(source + places[row] * width, width, packed + row * width);
  }
}

template <typename Real>
void add_rows(const Real* packed, const int64_t* places, const Real* weights, Range rows,
              int64_t width, Real* sum) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const Real weight = weights != nullptr ? weights[row] : Real{1};
    const Real* in = packed + row * width;
    Real* out = sum + places[row] * width;
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) out[c] += weight * in[c];
  }
}

template <typename Real>
void scale_rows(const Real* weights, Range rows, int64_t width, Real* values) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    Real* out = values + row * width;
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) out[c] *= weights[row];
  }
}

template <typename Real>
void row_dots(const Real* a, const Real* b, Range rows, int64_t width, Real* dots) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < width; ++c) sum += a[row * width + c] * b[row * width + c];
    dots[row] = sum;
  }
}

#define LONGSPAN_INSTANTIATE(Real)                                                         \
  template void gather_rows(const Real*, const int64_t*, Range, int64_t, Real*);           \
  template void add_rows(const Real*, const int64_t*, const Real*, Range, int64_t, Real*); \
  template void scale_rows(const Real*, Range, int64_t, Real*);                            \
  template void row_dots(const Real*, const Real*, Range, int64_t, Real*);
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan
