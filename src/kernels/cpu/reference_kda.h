// KDA's kernels as plain loops in double, token by token: the oracle of their tests.
//
//   const auto [o, state] = reference::kda(rows, width, q, k, v, g, beta, state_before);
//
// One head of one stretch; vectors hold row-major matrices. Only forward directions stand here:
// tests take gradients by finite differences of them.
// Pure functions.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace longspan::reference {

using Values = std::vector<double>;

struct KdaResult {
  Values o;      // [rows, V]
  Values state;  // [K, V]
};

inline KdaResult kda(size_t K, size_t V, const Values& q, const Values& k, const Values& v,
                     const Values& g, const Values& beta, Values state) {
  KdaResult result;
  for (size_t t = 0; t < beta.size(); ++t) {
    Values recalled(V, 0.0);
    for (size_t d = 0; d < K; ++d) {
      for (size_t c = 0; c < V; ++c) {
        state[d * V + c] *= std::exp(g[t * K + d]);
        recalled[c] += state[d * V + c] * k[t * K + d];
      }
    }
    Values o(V, 0.0);
    for (size_t d = 0; d < K; ++d) {
      for (size_t c = 0; c < V; ++c) {
        state[d * V + c] += k[t * K + d] * beta[t] * (v[t * V + c] - recalled[c]);
        o[c] += state[d * V + c] * q[t * K + d];
      }
    }
    result.o.insert(result.o.end(), o.begin(), o.end());
  }
  result.state = std::move(state);
  return result;
}

// x [before + rows, width], of which the last `rows` are convolved; weight [taps, width].
inline Values short_convolution(size_t before, size_t width, size_t taps, const Values& x,
                                const Values& weight) {
  Values y;
  for (size_t row = before; row < x.size() / width; ++row) {
    for (size_t c = 0; c < width; ++c) {
      double z = 0;
      for (size_t back = 0; back < taps && back <= row; ++back) {
        z += weight[(taps - 1 - back) * width + c] * x[(row - back) * width + c];
      }
      y.push_back(z / (1 + std::exp(-z)));
    }
  }
  return y;
}

inline Values unit_rows(size_t width, double scale, const Values& x) {
  Values y(x.size());
  for (size_t row = 0; row < x.size() / width; ++row) {
    double squares = 1e-6;
    for (size_t c = 0; c < width; ++c) squares += x[row * width + c] * x[row * width + c];
    for (size_t c = 0; c < width; ++c) {
      y[row * width + c] = scale * x[row * width + c] / std::sqrt(squares);
    }
  }
  return y;
}

inline double bounded_gate(double bound, double a_log, double f) {
  return bound / (1 + std::exp(-std::exp(a_log) * f));
}

inline double softplus_gate(double a_log, double f) {
  return -std::exp(a_log) * std::log1p(std::exp(f));
}

inline Values gated_norm(const Values& o, const Values& gate, const Values& weight,
                         double epsilon) {
  const size_t width = weight.size();
  Values y(o.size());
  for (size_t row = 0; row < o.size() / width; ++row) {
    double squares = 0;
    for (size_t c = 0; c < width; ++c) squares += o[row * width + c] * o[row * width + c];
    const double rms = std::sqrt(squares / static_cast<double>(width) + epsilon);
    for (size_t c = 0; c < width; ++c) {
      const size_t at = row * width + c;
      y[at] = weight[c] * o[at] / rms / (1 + std::exp(-gate[at]));
    }
  }
  return y;
}

}  // namespace longspan::reference
