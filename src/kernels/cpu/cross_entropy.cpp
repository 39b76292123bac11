#include "kernels/cpu/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/vector_math.h"

namespace longspan {
namespace {

constexpr int64_t kBlock = 1024;

template <typename Real>
Real row_max(const Real* row, int64_t vocabulary) {
  Real largest = row[0];
#pragma omp simd reduction(max : largest)
  for (int64_t v = 0; v < vocabulary; ++v) largest = row[v] > largest ? row[v] : largest;
  return largest;
}

// Sum of exp(row - largest), blocks of Real added up in double. `keep` stores the exponentials.
template <bool keep, typename Real>
double exp_sum(std::conditional_t<keep, Real, const Real>* row, int64_t vocabulary, Real largest) {
  double total = 0;
  for (int64_t begin = 0; begin < vocabulary; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, vocabulary);
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t v = begin; v < end; ++v) {
      const Real e = vector_exp(row[v] - largest);
      if constexpr (keep) row[v] = e;
      sum += e;
    }
    total += static_cast<double>(sum);
  }
  return total;
}

}  // namespace

template <typename Real>
void cross_entropy_losses(const Real* logits, const int32_t* targets, Range rows,
                          int64_t vocabulary, double* losses) {
  for (int64_t t = rows.begin; t < rows.end; ++t) {
    const Real* row = logits + t * vocabulary;
    const Real largest = row_max(row, vocabulary);
    const double sum = exp_sum<false, Real>(row, vocabulary, largest);
    losses[t] =
        std::log(sum) + (static_cast<double>(largest) - static_cast<double>(row[targets[t]]));
  }
}

template <typename Real>
void cross_entropy_gradient(Real* logits, const int32_t* targets, const float* weights,
                            double scale, Range rows, int64_t vocabulary, double* losses) {
  for (int64_t t = rows.begin; t < rows.end; ++t) {
    Real* row = logits + t * vocabulary;
    const Real largest = row_max(row, vocabulary);
    const double below_largest =
        static_cast<double>(largest) - static_cast<double>(row[targets[t]]);
    const double sum = exp_sum<true, Real>(row, vocabulary, largest);
    losses[t] = std::log(sum) + below_largest;
    const double weight = static_cast<double>(weights[t]) * scale;
    const auto factor = static_cast<Real>(weight / sum);
#pragma omp simd
    for (int64_t v = 0; v < vocabulary; ++v) row[v] *= factor;
    row[targets[t]] -= static_cast<Real>(weight);
  }
}

#define LONGSPAN_INSTANTIATE(Real)                                                          \
  template void cross_entropy_losses(const Real*, const int32_t*, Range, int64_t, double*); \
  template void cross_entropy_gradient(Real*, const int32_t*, const float*, double, Range,  \
                                       int64_t, double*);
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan
