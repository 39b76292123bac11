// The kernels of this folder as plain loops in double: the oracle of their tests, never optimised.
//
//   const std::vector<double> y = reference::rms_norm(x, weight, 1e-5);
//
// Vectors hold row-major matrices; the width follows from the sizes. Only forward directions stand
// here: tests take gradients by finite differences of them.
// Pure functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace longspan::reference {

inline std::vector<double> rms_norm(const std::vector<double>& x, const std::vector<double>& weight,
                                    double epsilon) {
  const size_t width = weight.size();
  std::vector<double> y(x.size());
  for (size_t row = 0; row < x.size() / width; ++row) {
    double squares = 0;
    for (size_t c = 0; c < width; ++c) squares += x[row * width + c] * x[row * width + c];
    const double rms = std::sqrt(squares / static_cast<double>(width) + epsilon);
    for (size_t c = 0; c < width; ++c) y[row * width + c] = x[row * width + c] / rms * weight[c];
  }
  return y;
}

inline std::vector<double> rope(const std::vector<double>& q, size_t heads,
                                const std::vector<float>& inverse_frequencies, double scaling,
                                const std::vector<int64_t>& positions) {
  const size_t half = inverse_frequencies.size();
  std::vector<double> rotated(q.size());
  for (size_t row = 0; row < positions.size() * heads; ++row) {
    for (size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(positions[row / heads]) * inverse_frequencies[i];
      const double cosine = std::cos(static_cast<double>(angle)) * scaling;
      const double sine = std::sin(static_cast<double>(angle)) * scaling;
      const double low = q[row * 2 * half + i];
      const double high = q[row * 2 * half + half + i];
      rotated[row * 2 * half + i] = low * cosine - high * sine;
      rotated[row * 2 * half + half + i] = high * cosine + low * sine;
    }
  }
  return rotated;
}

inline std::vector<double> swiglu(const std::vector<double>& gate, const std::vector<double>& up) {
  std::vector<double> y(gate.size());
  for (size_t i = 0; i < y.size(); ++i) y[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
  return y;
}

inline std::vector<double> cross_entropy(const std::vector<double>& logits,
                                         const std::vector<int32_t>& targets) {
  const size_t vocabulary = logits.size() / targets.size();
  std::vector<double> losses(targets.size());
  for (size_t row = 0; row < targets.size(); ++row) {
    const double* values = logits.data() + row * vocabulary;
    const double largest = *std::max_element(values, values + vocabulary);
    double sum = 0;
    for (size_t v = 0; v < vocabulary; ++v) sum += std::exp(values[v] - largest);
    losses[row] = largest + std::log(sum) - values[targets[row]];
  }
  return losses;
}

}  // namespace longspan::reference
