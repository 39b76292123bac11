#include "layers/cuda_ops.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "device/device.h"
#include "device/device_types.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/rms_norm.h"
#include "kernels/cuda/rope.h"
#include "kernels/cuda/swiglu.h"

namespace longspan {
namespace {

using cuda::Accumulate;

at::TensorOptions accumulate_options(const at::Tensor& like) {
  return like.options().dtype(accumulate_type(like.scalar_type()));
}

}  // namespace

NormOutput cuda_norm_forward(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  const int64_t width = weight.size(0);
  const int64_t rows = x.numel() / width;
  NormOutput output{at::empty_like(x), at::empty({rows}, accumulate_options(x))};
  for_device_type(x.scalar_type(), [&]<typename T>() {
    cuda::rms_norm_forward(device_data<const T>(x), device_data<const T>(weight), epsilon, rows,
                           width, device_data<T>(output.y),
                           device_data<Accumulate<T>>(output.inverse_rms), current_stream());
  });
  return output;
}

void cuda_norm_backward(const at::Tensor& x, const at::Tensor& weight,
                        const at::Tensor& inverse_rms, const at::Tensor& dy,
                        const at::Tensor& weight_gradient, const at::Tensor& dx, at::Tensor* y) {
  const int64_t width = weight.size(0);
  const int64_t rows = x.numel() / width;
  if (y != nullptr) *y = at::empty_like(x);
  for_device_type(x.scalar_type(), [&]<typename T>() {
    const at::Tensor partials =
        at::empty({cuda::rms_norm_partials<T>(rows, width)}, accumulate_options(x));
    cuda::rms_norm_backward(device_data<const T>(x), device_data<const T>(weight),
                            device_data<const Accumulate<T>>(inverse_rms), device_data<const T>(dy),
                            rows, width, device_data<T>(dx),
                            y != nullptr ? device_data<T>(*y) : nullptr,
                            device_data<Accumulate<T>>(partials),
                            device_data<Accumulate<T>>(weight_gradient), current_stream());
  });
}

void cuda_fill_rope_table(std::span<const float> inverse_frequencies, double scaling,
                          std::span<const int64_t> positions, RopeTable& table) {
  const at::Device device = table.cosines.device();
  const at::Tensor frequencies = upload(inverse_frequencies, device);
  const at::Tensor places = upload(positions, device);
  const auto fill = [&]<typename Real>() {
    cuda::rope_table(device_data<const float>(frequencies), std::ssize(inverse_frequencies),
                     scaling, device_data<const int64_t>(places), std::ssize(positions),
                     device_data<Real>(table.cosines), device_data<Real>(table.sines),
                     current_stream());
  };
  if (table.cosines.scalar_type() == at::kDouble) return fill.template operator()<double>();
  fill.template operator()<float>();
}

at::Tensor cuda_rotate(const at::Tensor& q_THK, const RopeTable& table, int direction) {
  at::Tensor rotated = at::empty_like(q_THK);
  for_device_type(q_THK.scalar_type(), [&]<typename T>() {
    cuda::rope_rotate(device_data<const T>(q_THK), device_data<const Accumulate<T>>(table.cosines),
                      device_data<const Accumulate<T>>(table.sines), q_THK.size(0), q_THK.size(1),
                      q_THK.size(2), direction, device_data<T>(rotated), current_stream());
  });
  return rotated;
}

at::Tensor cuda_swiglu(const at::Tensor& gate_TF, const at::Tensor& up_TF, double limit) {
  at::Tensor y = at::empty_like(gate_TF);
  for_device_type(y.scalar_type(), [&]<typename T>() {
    cuda::swiglu_forward(device_data<const T>(gate_TF), device_data<const T>(up_TF), limit,
                         y.numel(), device_data<T>(y), current_stream());
  });
  return y;
}

SwigluGradient cuda_swiglu_backward(const at::Tensor& gate_TF, const at::Tensor& up_TF,
                                    const at::Tensor& dy_TF, double limit) {
  SwigluGradient gradient{at::empty_like(gate_TF), at::empty_like(gate_TF)};
  for_device_type(gate_TF.scalar_type(), [&]<typename T>() {
    T* dy = device_data<T>(dy_TF);
    cuda::swiglu_backward(device_data<const T>(gate_TF), device_data<const T>(up_TF), limit,
                          static_cast<const T*>(dy), gate_TF.numel(), device_data<T>(gradient.y),
                          device_data<T>(gradient.dgate), dy, current_stream());
  });
  return gradient;
}

void cuda_embed(const at::Tensor& weight, std::span<const int32_t> tokens, const at::Tensor& x_TC) {
  const at::Tensor ids = upload(tokens, weight.device());
  for_device_type(weight.scalar_type(), [&]<typename T>() {
    cuda::embedding_gather(device_data<const T>(weight), device_data<const int32_t>(ids),
                           std::ssize(tokens), weight.size(1), device_data<T>(x_TC),
                           current_stream());
  });
}

void cuda_embed_backward(const at::Tensor& dx_TC, std::span<const int32_t> tokens,
                         const at::Tensor& gradient) {
  const EmbeddingPieces pieces = embedding_pieces(tokens);
  const at::Device device = gradient.device();
  const at::Tensor order = upload(std::span<const int32_t>(pieces.order), device);
  const at::Tensor list = upload_bytes(std::as_bytes(std::span(pieces.list)), device);
  const at::Tensor sums = upload_bytes(std::as_bytes(std::span(pieces.sums)), device);
  const at::Tensor partials =
      at::empty({int64_t{pieces.partials}, gradient.size(1)}, gradient.options());
  const cuda::DevicePieces on_device{
      .order = device_data<const int32_t>(order),
      .list = static_cast<const EmbeddingPieces::Piece*>(list.const_data_ptr()),
      .list_size = std::ssize(pieces.list),
      .sums = static_cast<const EmbeddingPieces::Sum*>(sums.const_data_ptr()),
      .sums_size = std::ssize(pieces.sums)};
  for_device_type(dx_TC.scalar_type(), [&]<typename T>() {
    cuda::embedding_scatter_add(device_data<const T>(dx_TC), on_device, gradient.size(1),
                                device_data<Accumulate<T>>(partials),
                                device_data<Accumulate<T>>(gradient), current_stream());
  });
}

void cuda_cross_entropy_losses(const at::Tensor& logits, const at::Tensor& targets,
                               const at::Tensor& losses) {
  for_device_type(logits.scalar_type(), [&]<typename T>() {
    cuda::cross_entropy_losses(device_data<const T>(logits), device_data<const int32_t>(targets),
                               logits.size(0), logits.size(1), device_data<double>(losses),
                               current_stream());
  });
}

void cuda_cross_entropy_gradient(const at::Tensor& logits, const at::Tensor& targets,
                                 const at::Tensor& weights, double scale,
                                 const at::Tensor& losses) {
  for_device_type(logits.scalar_type(), [&]<typename T>() {
    cuda::cross_entropy_gradient(device_data<T>(logits), device_data<const int32_t>(targets),
                                 device_data<const float>(weights), scale, logits.size(0),
                                 logits.size(1), device_data<double>(losses), current_stream());
  });
}

at::Tensor cuda_weighted_sum(const at::Tensor& losses, const at::Tensor& weights) {
  at::Tensor sum = at::zeros({1}, losses.options());
  cuda::add_weighted_losses(device_data<const double>(losses), device_data<const float>(weights),
                            losses.numel(), device_data<double>(sum), current_stream());
  return sum;
}

}  // namespace longspan
