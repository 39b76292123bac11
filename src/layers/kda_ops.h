// The operations with parameters around linear attention (KDA): the decay gate before it, the gated
// norm after it.
//
//   at::Tensor g_THK = decay_gate(access, gate, f_THK, {ids.a_log, ids.dt_bias});
//   at::Tensor beta_TH = project(access, x_TC, ids.beta).sigmoid();
//   ... linear attention ...
//   at::Tensor y_THV = gated_norm(access, o_THV, gate_THV, ids.output_norm, epsilon);
//
// decay_gate gives the logarithm of each state row's decay, of the kind that the model has
// (kernels/cpu/kda_rows.h). gated_norm is weight * o / rms(o) * logistic(gate) over the last axis,
// one weight for all heads. What is kept: f; o, the gate and one number a row and head.
//
// On a GPU, decays of a bfloat16 run are float32: their sums are exponents.
//
// Legend: T tokens, H heads, K key width, V value width. Rows may be none.
// Thread contract: one rank, on its thread; the access must outlive the graph.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/cpu/kda_rows.h"
#include "layers/parameter_access.h"

namespace longspan {

struct DecayGateParameters {
  ParameterId a_log = -1;    // one number a head, in any shape
  ParameterId dt_bias = -1;  // [H K]
};

at::Tensor decay_gate(const ParameterAccess& access, const DecayGate& gate, const at::Tensor& f_THK,
                      const DecayGateParameters& parameters);

at::Tensor gated_norm(const ParameterAccess& access, const at::Tensor& o_THV,
                      const at::Tensor& gate_THV, ParameterId weight, double epsilon);

}  // namespace longspan
