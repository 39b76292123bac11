// Private to layers/: the operations of row_ops.h, embedding.h and head_loss.h on a GPU, on the
// kernels of kernels/cuda. In builds without CUDA nothing here is called, nor defined.
//
// Shapes are checked by the callers. Work is queued on the calling thread's stream; nothing waits.
#pragma once

#include <cstdint>
#include <span>

#include "layers/head_loss.h"
#include "layers/row_ops.h"

namespace longspan {

NormOutput cuda_norm_forward(const at::Tensor& x, const at::Tensor& weight, double epsilon);
void cuda_norm_backward(const at::Tensor& x, const at::Tensor& weight,
                        const at::Tensor& inverse_rms, const at::Tensor& dy,
                        const at::Tensor& weight_gradient, const at::Tensor& dx, at::Tensor* y);

void cuda_fill_rope_table(std::span<const float> inverse_frequencies, double scaling,
                          std::span<const int64_t> positions, RopeTable& table);
at::Tensor cuda_rotate(const at::Tensor& q_THK, const RopeTable& table, int direction);

at::Tensor cuda_swiglu(const at::Tensor& gate_TF, const at::Tensor& up_TF, double limit);
SwigluGradient cuda_swiglu_backward(const at::Tensor& gate_TF, const at::Tensor& up_TF,
                                    const at::Tensor& dy_TF, double limit);

void cuda_embed(const at::Tensor& weight, std::span<const int32_t> tokens, const at::Tensor& x_TC);
void cuda_embed_backward(const at::Tensor& dx_TC, std::span<const int32_t> tokens,
                         const at::Tensor& gradient);

// `targets` and `weights` on the device; `losses` float64, one a row.
void cuda_cross_entropy_losses(const at::Tensor& logits, const at::Tensor& targets,
                               const at::Tensor& losses);
void cuda_cross_entropy_gradient(const at::Tensor& logits, const at::Tensor& targets,
                                 const at::Tensor& weights, double scale, const at::Tensor& losses);
// One float64 on the device.
at::Tensor cuda_weighted_sum(const at::Tensor& losses, const at::Tensor& weights);

}  // namespace longspan
