// Private to layers/: the operations of kda_ops.h on a GPU, on the kernels of kernels/cuda. In
// builds without CUDA nothing here is called, nor defined.
//
// Shapes are checked by the callers. Parameters of the decay gate may have the accumulation type.
// Work is queued on the calling thread's stream; nothing waits.
#pragma once

#include "kernels/cpu/kda_rows.h"
#include "layers/row_ops.h"

namespace longspan {

// The result has the accumulation type.
at::Tensor cuda_decay_gate(const DecayGate& gate, const at::Tensor& f_THK, const at::Tensor& a_log,
                           const at::Tensor& dt_bias);
at::Tensor cuda_decay_gate_backward(const DecayGate& gate, const at::Tensor& f_THK,
                                    const at::Tensor& a_log, const at::Tensor& dt_bias,
                                    const at::Tensor& dg_THK, const at::Tensor& a_log_gradient,
                                    const at::Tensor& dt_bias_gradient);

NormOutput cuda_gated_norm(const at::Tensor& o_THV, const at::Tensor& gate_THV,
                           const at::Tensor& weight, double epsilon);

struct GatedNormGradient {
  at::Tensor o;
  at::Tensor gate;
};
GatedNormGradient cuda_gated_norm_backward(const at::Tensor& o_THV, const at::Tensor& gate_THV,
                                           const at::Tensor& weight, const at::Tensor& inverse_rms,
                                           const at::Tensor& dy_THV,
                                           const at::Tensor& weight_gradient);

}  // namespace longspan
