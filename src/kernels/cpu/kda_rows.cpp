#include "kernels/cpu/kda_rows.h"

#include <cmath>

#include "kernels/cpu/vector_math.h"

namespace longspan {
namespace {

constexpr double kUnitEpsilon = 1e-6;

// log(1 + exp(z)) without overflow.
template <typename Real>
Real softplus(Real z) {
  return std::max(z, Real{0}) + std::log1p(std::exp(-std::abs(z)));
}

}  // namespace

template <typename Real>
void unit_rows_forward(int64_t rows, int64_t width, double scale, Real* x, Real* inverse_norm) {
  for (int64_t row = 0; row < rows; ++row) {
    Real* values = x + row * width;
    Real squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t c = 0; c < width; ++c) squares += values[c] * values[c];
    const Real inverse = Real{1} / std::sqrt(squares + static_cast<Real>(kUnitEpsilon));
    const Real factor = inverse * static_cast<Real>(scale);
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) values[c] *= factor;
    inverse_norm[row] = inverse;
  }
}

template <typename Real>
void unit_rows_backward(int64_t rows, int64_t width, double scale, const Real* y,
                        const Real* inverse_norm, Real* dy) {
  // With u = y / scale: dx = inverse (scale dy - u <u, scale dy>).
  const auto per_scale = static_cast<Real>(1 / scale);
  for (int64_t row = 0; row < rows; ++row) {
    const Real* values = y + row * width;
    Real* grad = dy + row * width;
    Real dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t c = 0; c < width; ++c) dot += values[c] * grad[c];
    const Real pull = dot * per_scale * inverse_norm[row];
    const Real factor = static_cast<Real>(scale) * inverse_norm[row];
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) grad[c] = factor * grad[c] - pull * values[c];
  }
}

template <typename Real>
void decay_gate_forward(const DecayGate& gate, const GateShape& shape, const Real* f,
                        const Real* a_log, const Real* dt_bias, Range tokens, Real* g) {
  const auto bound = static_cast<Real>(gate.bound);
  for (int64_t row = tokens.begin * shape.heads; row < tokens.end * shape.heads; ++row) {
    const int64_t head = row % shape.heads;
    const Real rate = std::exp(a_log[head]);
    const Real* in = f + row * shape.width;
    const Real* bias = dt_bias + head * shape.width;
    Real* out = g + row * shape.width;
    if (gate.kind == DecayGate::Kind::kBounded) {
#pragma omp simd
      for (int64_t c = 0; c < shape.width; ++c) {
        out[c] = bound * vector_logistic(rate * (in[c] + bias[c]));
      }
    } else {
      for (int64_t c = 0; c < shape.width; ++c) out[c] = -rate * softplus(in[c] + bias[c]);
    }
  }
}

template <typename Real>
void decay_gate_backward(const DecayGate& gate, const GateShape& shape, const Real* f,
                         const Real* a_log, const Real* dt_bias, const Real* dg, Range tokens,
                         Real* df, Real* a_log_gradient, Real* dt_bias_gradient) {
  const auto bound = static_cast<Real>(gate.bound);
  for (int64_t row = tokens.begin * shape.heads; row < tokens.end * shape.heads; ++row) {
    const int64_t head = row % shape.heads;
    const Real rate = std::exp(a_log[head]);
    const Real* in = f + row * shape.width;
    const Real* bias = dt_bias + head * shape.width;
    const Real* grad = dg + row * shape.width;
    Real* out = df + row * shape.width;
    Real* bias_gradient = dt_bias_gradient + head * shape.width;
    Real of_rate = 0;  // d / d A_log, since d rate / d A_log = rate
    if (gate.kind == DecayGate::Kind::kBounded) {
#pragma omp simd reduction(+ : of_rate)
      for (int64_t c = 0; c < shape.width; ++c) {
        const Real z = in[c] + bias[c];
        const Real logistic = vector_logistic(rate * z);
        const Real dz = rate * (bound * grad[c] * logistic * (Real{1} - logistic));
        of_rate += dz * z;
        bias_gradient[c] += dz;
        out[c] = dz;
      }
    } else {
      for (int64_t c = 0; c < shape.width; ++c) {
        const Real z = in[c] + bias[c];
        const Real dz = -rate * grad[c] * vector_logistic(z);
        of_rate -= rate * grad[c] * softplus(z);
        bias_gradient[c] += dz;
        out[c] = dz;
      }
    }
    a_log_gradient[head] += of_rate;
  }
}

template <typename Real>
void gated_norm_forward(const Real* o, const Real* gate, const Real* weight, double epsilon,
                        Range rows, int64_t width, Real* y, Real* inverse_rms) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const Real* in = o + row * width;
    const Real* gates = gate + row * width;
    Real* out = y + row * width;
    Real squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t c = 0; c < width; ++c) squares += in[c] * in[c];
    const Real scale =
        Real{1} / std::sqrt(squares / static_cast<Real>(width) + static_cast<Real>(epsilon));
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      out[c] = in[c] * scale * weight[c] * vector_logistic(gates[c]);
    }
    inverse_rms[row] = scale;
  }
}

template <typename Real>
void gated_norm_backward(const Real* o, const Real* gate, const Real* weight,
                         const Real* inverse_rms, const Real* dy, Range rows, int64_t width,
                         Real* d_o, Real* dgate, Real* weight_gradient) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const Real* in = o + row * width;
    const Real* gates = gate + row * width;
    const Real* grad = dy + row * width;
    Real* d_in = d_o + row * width;
    Real* d_gates = dgate + row * width;
    const Real scale = inverse_rms[row];
    Real dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t c = 0; c < width; ++c) {
      const Real open = vector_logistic(gates[c]);
      const Real normed = in[c] * scale;
      d_in[c] = grad[c] * weight[c] * open;
      dot += d_in[c] * normed;
      weight_gradient[c] += grad[c] * normed * open;
      d_gates[c] = d_in[c] * normed * (Real{1} - open);
    }
    const Real pull = dot / static_cast<Real>(width) * scale;
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) d_in[c] = scale * (d_in[c] - pull * in[c]);
  }
}

#define LONGSPAN_INSTANTIATE(Real)                                                                \
  template void unit_rows_forward(int64_t, int64_t, double, Real*, Real*);                        \
  template void unit_rows_backward(int64_t, int64_t, double, const Real*, const Real*, Real*);    \
  template void decay_gate_forward(const DecayGate&, const GateShape&, const Real*, const Real*,  \
                                   const Real*, Range, Real*);                                    \
  template void decay_gate_backward(const DecayGate&, const GateShape&, const Real*, const Real*, \
                                    const Real*, const Real*, Range, Real*, Real*, Real*);        \
  template void gated_norm_forward(const Real*, const Real*, const Real*, double, Range, int64_t, \
                                   Real*, Real*);                                                 \
  template void gated_norm_backward(const Real*, const Real*, const Real*, const Real*,           \
                                    const Real*, Range, int64_t, Real*, Real*, Real*);
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan
