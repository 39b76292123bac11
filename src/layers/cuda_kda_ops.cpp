#include "layers/cuda_kda_ops.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "base/error.h"
#include "device/device.h"
#include "device/device_types.h"
#include "kernels/cuda/kda_rows.h"

namespace longspan {
namespace {

using cuda::Accumulate;

at::TensorOptions accumulate_options(const at::Tensor& like) {
  return like.options().dtype(accumulate_type(like.scalar_type()));
}

at::Tensor widened(const at::Tensor& parameter) {
  return parameter.to(accumulate_type(parameter.scalar_type()));
}

}  // namespace

at::Tensor cuda_decay_gate(const DecayGate& gate, const at::Tensor& f_THK, const at::Tensor& a_log,
                           const at::Tensor& dt_bias) {
  const GateShape shape{f_THK.size(1), f_THK.size(2)};
  const at::Tensor rates = widened(a_log);
  const at::Tensor bias = widened(dt_bias);
  at::Tensor g = at::empty(f_THK.sizes(), accumulate_options(f_THK));
  for_device_type(f_THK.scalar_type(), [&]<typename T>() {
    cuda::decay_gate_forward(gate, shape, device_data<const T>(f_THK),
                             device_data<const Accumulate<T>>(rates),
                             device_data<const Accumulate<T>>(bias), f_THK.size(0),
                             device_data<Accumulate<T>>(g), current_stream());
  });
  return g;
}

at::Tensor cuda_decay_gate_backward(const DecayGate& gate, const at::Tensor& f_THK,
                                    const at::Tensor& a_log, const at::Tensor& dt_bias,
                                    const at::Tensor& dg_THK, const at::Tensor& a_log_gradient,
                                    const at::Tensor& dt_bias_gradient) {
  const GateShape shape{f_THK.size(1), f_THK.size(2)};
  const int64_t tokens = f_THK.size(0);
  const at::Tensor rates = widened(a_log);
  const at::Tensor bias = widened(dt_bias);
  const at::Tensor partials =
      at::empty({cuda::decay_gate_partials(shape, tokens)}, accumulate_options(f_THK));
  at::Tensor df = at::empty_like(f_THK);
  for_device_type(f_THK.scalar_type(), [&]<typename T>() {
    using A = Accumulate<T>;
    cuda::decay_gate_backward(gate, shape, device_data<const T>(f_THK), device_data<const A>(rates),
                              device_data<const A>(bias), device_data<const A>(dg_THK), tokens,
                              device_data<T>(df), device_data<A>(partials),
                              device_data<A>(a_log_gradient), device_data<A>(dt_bias_gradient),
                              current_stream());
  });
  return df;
}

NormOutput cuda_gated_norm(const at::Tensor& o_THV, const at::Tensor& gate_THV,
                           const at::Tensor& weight, double epsilon) {
  const int64_t width = o_THV.size(2);
  const int64_t rows = o_THV.size(0) * o_THV.size(1);
  if (!cuda::gated_norm_fits(width)) {
    throw UserError(text("the gated norm of linear attention has no GPU kernel for heads of width ",
                         width, "; set layout.device = \"cpu\""));
  }
  NormOutput output{at::empty_like(o_THV), at::empty({rows}, accumulate_options(o_THV))};
  for_device_type(o_THV.scalar_type(), [&]<typename T>() {
    cuda::gated_norm_forward(device_data<const T>(o_THV), device_data<const T>(gate_THV),
                             device_data<const T>(weight), epsilon, rows, width,
                             device_data<T>(output.y),
                             device_data<Accumulate<T>>(output.inverse_rms), current_stream());
  });
  return output;
}

GatedNormGradient cuda_gated_norm_backward(const at::Tensor& o_THV, const at::Tensor& gate_THV,
                                           const at::Tensor& weight, const at::Tensor& inverse_rms,
                                           const at::Tensor& dy_THV,
                                           const at::Tensor& weight_gradient) {
  const int64_t width = o_THV.size(2);
  const int64_t rows = o_THV.size(0) * o_THV.size(1);
  const at::Tensor partials =
      at::empty({cuda::gated_norm_partials(rows, width)}, accumulate_options(o_THV));
  GatedNormGradient gradient{at::empty_like(o_THV), at::empty_like(o_THV)};
  for_device_type(o_THV.scalar_type(), [&]<typename T>() {
    using A = Accumulate<T>;
    cuda::gated_norm_backward(device_data<const T>(o_THV), device_data<const T>(gate_THV),
                              device_data<const T>(weight), device_data<const A>(inverse_rms),
                              device_data<const T>(dy_THV), rows, width, device_data<T>(gradient.o),
                              device_data<T>(gradient.gate), device_data<A>(partials),
                              device_data<A>(weight_gradient), current_stream());
  });
  return gradient;
}

}  // namespace longspan
