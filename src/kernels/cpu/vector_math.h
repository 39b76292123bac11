// exp and the logistic function in a form that compilers turn into vector code.
//
// Why: libm's exp is a call per element; softmax and SiLU are mostly exp. Reduction to
// |r| <= ln(2)/2 and a Taylor polynomial need no table and no branch, so a plain loop over
// vector_exp becomes SIMD on any machine.
//
//   for (int64_t i = 0; i < n; ++i) y[i] = vector_exp(x[i]);
//
// Error: under 2 units in the last place between the bounds; arguments are clamped to them, so the
// result is never 0, infinite or denormal (1.2e-38 .. 2e38 in float). NaN stays NaN. Needs
// round-to-nearest, and a compiler that does not reassociate sums (no -ffast-math).
// Pure functions.
#pragma once

#include <bit>
#include <cstdint>

namespace longspan {

inline float vector_exp(float x) {
  constexpr float kLow = -87.0f;
  constexpr float kHigh = 88.0f;
  constexpr float kLog2e = 0x1.715476p+0f;
  // ln(2) in two parts; the first has 12 bits, so a product with |n| <= 127 is exact.
  constexpr float kLn2High = 0x1.62ep-1f;
  constexpr float kLn2Low = 0x1.0bfbe8p-15f;
  // 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits.
  constexpr float kRound = 0x1.8p+23f;
  x = x < kLow ? kLow : x;
  x = x > kHigh ? kHigh : x;
  const float shifted = x * kLog2e + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const uint32_t power = (std::bit_cast<uint32_t>(shifted) << 23) + 0x3f800000u;
  return p * std::bit_cast<float>(power);
}

inline double vector_exp(double x) {
  constexpr double kLow = -708.0;
  constexpr double kHigh = 709.0;
  constexpr double kLog2e = 0x1.71547652b82fep+0;
  constexpr double kLn2High = 0x1.62e42fep-1;  // 28 bits, exact as above
  constexpr double kLn2Low = 0x1.f473de6af278fp-30;
  constexpr double kRound = 0x1.8p+52;
  x = x < kLow ? kLow : x;
  x = x > kHigh ? kHigh : x;
  const double shifted = x * kLog2e + kRound;
  const double n = shifted - kRound;
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double p = 1.0 / 6227020800;
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const uint64_t power = (std::bit_cast<uint64_t>(shifted) << 52) + 0x3ff0000000000000ull;
  return p * std::bit_cast<double>(power);
}

template <typename Real>
inline Real vector_logistic(Real x) {
  return Real{1} / (Real{1} + vector_exp(-x));
}

}  // namespace longspan
