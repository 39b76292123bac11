// For the tests of the KDA kernels: random values, errors, and derivatives along a direction.
//
//   const Values x = random_values(random, 12, /*scale=*/0.5);
//   EXPECT_LT(relative_error(result, expected), 1e-12);
//   EXPECT_LT(derivative_error(x, gradient, objective, random), 1e-8);
//
// Pure but for the random stream.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "base/random.h"

namespace longspan {

using Values = std::vector<double>;

inline Values random_values(RandomStream& random, int64_t count, double scale) {
  Values values(static_cast<size_t>(count));
  for (double& value : values) value = scale * random.normal();
  return values;
}

template <typename Real>
std::vector<Real> as(const Values& values) {
  std::vector<Real> cast(values.size());
  std::transform(values.begin(), values.end(), cast.begin(),
                 [](double value) { return static_cast<Real>(value); });
  return cast;
}

template <typename Real>
double relative_error(const std::vector<Real>& value, const Values& expected) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(static_cast<double>(value.at(i)) - expected[i], 2);
    norm += std::pow(expected[i], 2);
  }
  return std::sqrt(difference) / std::max(std::sqrt(norm), 1e-300);
}

inline double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b.at(i);
  return sum;
}

// How far `gradient` is from the objective's derivative along a random direction, by central
// differences of order four, on the scale of the gradient, or
// of what differences can resolve.
inline double derivative_error(const Values& x, const Values& gradient,
                               const std::function<double(const Values&)>& objective,
                               RandomStream& random) {
  const Values direction = random_values(random, static_cast<int64_t>(x.size()), 1);
  const double step = 1e-3 / std::sqrt(dot(direction, direction));
  const auto at = [&](double steps) {
    Values moved = x;
    for (size_t i = 0; i < moved.size(); ++i) moved[i] += steps * step * direction[i];
    return objective(moved);
  };
  const double expected = (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * step);
  const double length = std::sqrt(dot(direction, direction));
  const double scale = std::sqrt(dot(gradient, gradient) / static_cast<double>(x.size())) * length;
  // Below this the differences are the objective's own rounding.
  const double floor = 1e-4 * std::abs(at(0)) * length;
  return std::abs(dot(gradient, direction) - expected) / std::max(scale, floor);
}

}  // namespace longspan
