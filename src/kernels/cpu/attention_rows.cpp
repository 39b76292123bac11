#include "kernels/cpu/attention_rows.h"

#include <cmath>
#include <limits>

namespace longspan {

template <typename Real>
void merge_attention_rows(const AttentionShape& shape, int64_t rows, Real* o, Real* lse,
                          const Real* part_o, const Real* part_lse) {
  const int64_t width = shape.head_width;
  for (int64_t row = 0; row < rows * shape.heads; ++row) {
    const Real maximum = std::max(lse[row], part_lse[row]);
    if (maximum == -std::numeric_limits<Real>::infinity()) continue;
    const Real merged =
        maximum + std::log(std::exp(lse[row] - maximum) + std::exp(part_lse[row] - maximum));
    const Real weight = std::exp(lse[row] - merged);
    const Real part_weight = std::exp(part_lse[row] - merged);
    lse[row] = merged;
    Real* values = o + row * width;
    const Real* part_values = part_o + row * width;
    for (int64_t column = 0; column < width; ++column) {
      values[column] = weight * values[column] + part_weight * part_values[column];
    }
  }
}

template <typename Real>
void attention_delta(const AttentionShape& shape, int64_t rows, const Real* o, const Real* d_o,
                     Real* delta) {
  const int64_t width = shape.head_width;
  for (int64_t row = 0; row < rows * shape.heads; ++row) {
    const Real* values = o + row * width;
    const Real* gradients = d_o + row * width;
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t column = 0; column < width; ++column) sum += values[column] * gradients[column];
    delta[row] = sum;
  }
}

template void merge_attention_rows<float>(const AttentionShape&, int64_t, float*, float*,
                                          const float*, const float*);
template void merge_attention_rows<double>(const AttentionShape&, int64_t, double*, double*,
                                           const double*, const double*);
template void attention_delta<float>(const AttentionShape&, int64_t, const float*, const float*,
                                     float*);
template void attention_delta<double>(const AttentionShape&, int64_t, const double*, const double*,
                                      double*);

}  // namespace longspan
