// The row-by-row parts of linear attention (KDA): unit vectors, the decay gate, the gated norm.
//
//   unit_rows_forward(rows, width, 1 / sqrt(width), q, inverse_norm);  // in place
//   decay_gate_forward(gate, {heads, width}, f, a_log, dt_bias, tokens, g);
//   gated_norm_forward(o, gate, weight, 1e-5, rows, width, y, inverse_rms);
//
// g is the logarithm of the decay of one state row by one token: of glm5_next
// bound * logistic(exp(A_log) (f + dt_bias)), of kimi_linear -exp(A_log) softplus(f + dt_bias).
// Gradients of parameters are sums over rows: a caller that deals rows to threads gives fixed
// blocks of rows (kKdaSumRows) a partial of their own and adds the partials in order.
// Thread contract: pure on disjoint rows (and disjoint partials).
#pragma once

#include <cstdint>

#include "base/range.h"

namespace longspan {

// Rows that share one partial sum of the gradients of parameters.
inline constexpr int64_t kKdaSumRows = 256;

struct DecayGate {
  enum class Kind { kBounded, kSoftplus };
  Kind kind = Kind::kBounded;
  double bound = -5;  // kBounded: g lies in (bound, 0)
  bool operator==(const DecayGate&) const = default;
};

// x = scale * x / sqrt(|x|^2 + 1e-6) for each row [width]; keeps 1 / sqrt(...).
template <typename Real>
void unit_rows_forward(int64_t rows, int64_t width, double scale, Real* x, Real* inverse_norm);

// `y` is the forward's result; its gradient dy becomes that of the input.
template <typename Real>
void unit_rows_backward(int64_t rows, int64_t width, double scale, const Real* y,
                        const Real* inverse_norm, Real* dy);

struct GateShape {
  int64_t heads = 1;
  int64_t width = 1;
};

// f, g [tokens, heads, width]; a_log [heads]; dt_bias [heads, width].
template <typename Real>
void decay_gate_forward(const DecayGate& gate, const GateShape& shape, const Real* f,
                        const Real* a_log, const Real* dt_bias, Range tokens, Real* g);

// df is written and may be dg; the gradients of a_log and dt_bias are added to.
template <typename Real>
void decay_gate_backward(const DecayGate& gate, const GateShape& shape, const Real* f,
                         const Real* a_log, const Real* dt_bias, const Real* dg, Range tokens,
                         Real* df, Real* a_log_gradient, Real* dt_bias_gradient);

// y = weight * o / sqrt(mean(o^2) + epsilon) * logistic(gate) for each row [width].
template <typename Real>
void gated_norm_forward(const Real* o, const Real* gate, const Real* weight, double epsilon,
                        Range rows, int64_t width, Real* y, Real* inverse_rms);

// do and dgate are written, neither may be dy; the weight's gradient [width] is added to.
template <typename Real>
void gated_norm_backward(const Real* o, const Real* gate, const Real* weight,
                         const Real* inverse_rms, const Real* dy, Range rows, int64_t width,
                         Real* d_o, Real* dgate, Real* weight_gradient);

}  // namespace longspan
