// The decay gate and the gated norm of linear attention, on a GPU: twin of kernels/cpu/kda_rows.h.
//
//   cuda::decay_gate_forward(gate, shape, f, a_log, dt_bias, tokens, g, stream);
//   cuda::gated_norm_forward(o, gate, weight, 1e-5, rows, width, y, inverse_rms, stream);
//
// Logarithms of decays are Accumulate<T>: their sums over tokens are exponents. Gradients of
// parameters are sums of fixed groups of rows, in `partials`, added in order.
// Conventions as in cuda_types.h.
#pragma once

#include "kernels/cpu/kda_rows.h"
#include "kernels/cuda/cuda_types.h"

namespace longspan::cuda {

// f [tokens, heads, width]; a_log [heads]; dt_bias [heads, width]; g as f.
template <typename T>
void decay_gate_forward(const DecayGate& gate, const GateShape& shape, const T* f,
                        const Accumulate<T>* a_log, const Accumulate<T>* dt_bias, int64_t tokens,
                        Accumulate<T>* g, Stream stream);

int64_t decay_gate_partials(const GateShape& shape, int64_t tokens);

// df is written; the gradients of a_log and dt_bias are added to.
template <typename T>
void decay_gate_backward(const DecayGate& gate, const GateShape& shape, const T* f,
                         const Accumulate<T>* a_log, const Accumulate<T>* dt_bias,
                         const Accumulate<T>* dg, int64_t tokens, T* df, Accumulate<T>* partials,
                         Accumulate<T>* a_log_gradient, Accumulate<T>* dt_bias_gradient,
                         Stream stream);

// Whether rows of this width fit into a warp's registers.
bool gated_norm_fits(int64_t width);

template <typename T>
void gated_norm_forward(const T* o, const T* gate, const T* weight, double epsilon, int64_t rows,
                        int64_t width, T* y, Accumulate<T>* inverse_rms, Stream stream);

int64_t gated_norm_partials(int64_t rows, int64_t width);

// d_o and dgate are written, neither may be dy; the weight's gradient is added to.
template <typename T>
void gated_norm_backward(const T* o, const T* gate, const T* weight,
                         const Accumulate<T>* inverse_rms, const T* dy, int64_t rows, int64_t width,
                         T* d_o, T* dgate, Accumulate<T>* partials, Accumulate<T>* weight_gradient,
                         Stream stream);

}  // namespace longspan::cuda
