#include "kernels/cpu/adamw.h"

#include <cmath>

namespace longspan {

template <typename Real>
void adamw_update(const AdamWStep& step, Range elements, const Real* gradient, Real* weight,
                  Real* first_moment, Real* second_moment) {
  const auto steps = static_cast<double>(step.step);
  const double correction1 = 1 - std::pow(step.beta1, steps);
  const double correction2 = 1 - std::pow(step.beta2, steps);
  const auto scale = static_cast<Real>(step.gradient_scale);
  const auto beta1 = static_cast<Real>(step.beta1);
  const auto beta2 = static_cast<Real>(step.beta2);
  const auto rest1 = static_cast<Real>(1 - step.beta1);
  const auto rest2 = static_cast<Real>(1 - step.beta2);
  const auto keep = static_cast<Real>(1 - step.learning_rate * step.weight_decay);
  const auto rate = static_cast<Real>(step.learning_rate / correction1);
  const auto inverse_root = static_cast<Real>(1 / std::sqrt(correction2));
  const auto epsilon = static_cast<Real>(step.epsilon);
#pragma omp simd
  for (int64_t i = elements.begin; i < elements.end; ++i) {
    const Real g = gradient[i] * scale;
    const Real m = beta1 * first_moment[i] + rest1 * g;
    const Real v = beta2 * second_moment[i] + rest2 * g * g;
    first_moment[i] = m;
    second_moment[i] = v;
    weight[i] = weight[i] * keep - rate * m / (std::sqrt(v) * inverse_root + epsilon);
  }
}

template <typename Real>
double squared_norm(const Real* values, Range elements) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = elements.begin; i < elements.end; ++i) {
    sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  return sum;
}

#define LONGSPAN_INSTANTIATE(Real)                                                       \
  template void adamw_update(const AdamWStep&, Range, const Real*, Real*, Real*, Real*); \
  template double squared_norm(const Real*, Range);
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan
