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

inline std::vector<double> swiglu(const std::vector<double>& gate, const std::vector<double>& up,
                                  double limit) {
  std::vector<double> y(gate.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const double g = std::min(gate[i], limit);
    y[i] = g / (1 + std::exp(-g)) * std::clamp(up[i], -limit, limit);
  }
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

struct HyperConnection {
  std::vector<double> x_in;   // [T, C]
  std::vector<double> write;  // [T, N]
  std::vector<double> mix;    // [T, N, N]
};

// streams [T, N, C], fn [N (N + 2), N C], base [N (N + 2)], scale [3].
inline HyperConnection hyper_read(const std::vector<double>& streams, const std::vector<double>& fn,
                                  const std::vector<double>& base, const std::vector<double>& scale,
                                  size_t n, size_t rounds, double norm_epsilon, double epsilon) {
  const size_t maps = n * (n + 2);
  const size_t flat = fn.size() / maps;
  const size_t width = flat / n;
  HyperConnection result;
  for (size_t token = 0; token < streams.size() / flat; ++token) {
    const std::vector<double> x(streams.begin() + static_cast<int64_t>(token * flat),
                                streams.begin() + static_cast<int64_t>((token + 1) * flat));
    const std::vector<double> normed = rms_norm(x, std::vector<double>(flat, 1.0), norm_epsilon);
    std::vector<double> z(maps);
    for (size_t m = 0; m < maps; ++m) {
      double raw = 0;
      for (size_t c = 0; c < flat; ++c) raw += fn[m * flat + c] * normed[c];
      z[m] = scale[m < n ? 0 : m < 2 * n ? 1 : 2] * raw + base[m];
    }
    for (size_t c = 0; c < width; ++c) {
      double sum = 0;
      for (size_t i = 0; i < n; ++i)
        sum += (1 / (1 + std::exp(-z[i])) + epsilon) * x[i * width + c];
      result.x_in.push_back(sum);
    }
    for (size_t j = 0; j < n; ++j) result.write.push_back(2 / (1 + std::exp(-z[n + j])));
    std::vector<double> mix(n * n);
    auto cell = [&](size_t i, size_t j) -> double& { return mix[i * n + j]; };
    for (size_t i = 0; i < n; ++i) {
      double sum = 0;
      for (size_t j = 0; j < n; ++j) sum += cell(i, j) = std::exp(z[2 * n + i * n + j]);
      for (size_t j = 0; j < n; ++j) cell(i, j) = cell(i, j) / sum + epsilon;
    }
    for (size_t step = 0; step < 2 * rounds - 1; ++step) {
      for (size_t line = 0; line < n; ++line) {
        double sum = epsilon;
        auto element = [&](size_t k) -> double& {
          return step % 2 == 0 ? cell(k, line) : cell(line, k);
        };
        for (size_t k = 0; k < n; ++k) sum += element(k);
        for (size_t k = 0; k < n; ++k) element(k) /= sum;
      }
    }
    result.mix.insert(result.mix.end(), mix.begin(), mix.end());
  }
  return result;
}

inline std::vector<double> hyper_write(const std::vector<double>& streams,
                                       const std::vector<double>& y,
                                       const std::vector<double>& write,
                                       const std::vector<double>& mix, size_t n) {
  const size_t tokens = write.size() / n;
  const size_t width = y.size() / tokens;
  std::vector<double> result(streams.size());
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t j = 0; j < n; ++j) {
      for (size_t c = 0; c < width; ++c) {
        double sum = write[t * n + j] * y[t * width + c];
        for (size_t i = 0; i < n; ++i) {
          sum += mix[(t * n + i) * n + j] * streams[(t * n + i) * width + c];
        }
        result[(t * n + j) * width + c] = sum;
      }
    }
  }
  return result;
}

// The experts of one token by a plain sort: higher s + bias first, then lower index; ascending.
inline std::vector<int32_t> router_choice(const std::vector<double>& scores,
                                          const std::vector<double>& bias, size_t top_k) {
  std::vector<int32_t> order(scores.size());
  for (size_t e = 0; e < order.size(); ++e) order[e] = static_cast<int32_t>(e);
  auto value = [&](int32_t e) {
    return scores[static_cast<size_t>(e)] + bias[static_cast<size_t>(e)];
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return value(a) > value(b); });
  order.resize(top_k);
  std::sort(order.begin(), order.end());
  return order;
}

inline std::vector<double> router_weights(const std::vector<double>& logits,
                                          const std::vector<int32_t>& ids, bool normalized,
                                          double scale) {
  std::vector<double> weights;
  double sum = 0;
  for (const int32_t id : ids) {
    weights.push_back(1 / (1 + std::exp(-logits[static_cast<size_t>(id)])));
    sum += weights.back();
  }
  for (double& weight : weights) weight *= scale / (normalized ? sum + 1e-20 : 1);
  return weights;
}

}  // namespace longspan::reference
