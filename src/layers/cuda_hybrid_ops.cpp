#include "layers/cuda_hybrid_ops.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sub.h>

#include <utility>

#include "device/device.h"
#include "device/device_types.h"
#include "kernels/cuda/hyper_connection.h"
#include "kernels/cuda/router.h"
#include "layers/weight_gradient.h"

namespace longspan {
namespace {

using cuda::Accumulate;

// x W^T, in the accumulation type.
at::Tensor product(const at::Tensor& x, const at::Tensor& weight) {
  const at::ScalarType sums = accumulate_type(x.scalar_type());
  if (sums == x.scalar_type()) return at::mm(x, weight.t());
  return at::mm(x, weight.t(), sums);
}

// float32 numbers as sums of two bfloat16 ones, to 2^-16: products with bfloat16 factors then run
// on tensor cores and lose next to nothing.
std::pair<at::Tensor, at::Tensor> two_parts(const at::Tensor& values) {
  const at::Tensor high = values.to(at::kBFloat16);
  return {high, at::sub(values, high).to(at::kBFloat16)};
}

// sum += a b, in the type of the sum.
void add_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  at::addmm_out(sum, sum, a, b, sum.scalar_type());
}

void require(const char* what, const char* refusal) {
  if (*refusal == '\0') return;
  throw UserError(text(what, ": ", refusal, "; set layout.device = \"cpu\""));
}

template <typename T>
cuda::HyperReadInputs<T> read_inputs(const ParameterAccess& access,
                                     const HyperParameters& parameters, const at::Tensor& streams) {
  return {device_data<const T>(streams),
          device_data<const Accumulate<T>>(access.weights->weight(parameters.base)),
          device_data<const Accumulate<T>>(access.weights->weight(parameters.scale))};
}

template <typename T>
cuda::HyperWriteInputs<T> write_inputs(const HyperWriteTensors& inputs) {
  return {device_data<const T>(inputs.streams), device_data<const T>(inputs.y),
          device_data<const Accumulate<T>>(inputs.write),
          device_data<const Accumulate<T>>(inputs.mix)};
}

// Calls a template with float or double.
template <typename Function>
void for_sums_type(at::ScalarType type, const Function& function) {
  LONGSPAN_CHECK(type == at::kFloat || type == at::kDouble, "sums in ", c10::toString(type));
  if (type == at::kFloat) return function.template operator()<float>();
  function.template operator()<double>();
}

}  // namespace

void require_hyper_kernels(const HyperShape& shape) {
  require("hyper-connections", cuda::hyper_refusal(shape));
}

void require_router_kernels(const RouterShape& shape) {
  require("the router", cuda::router_refusal(shape));
}

HyperReadResult cuda_hyper_read(const ParameterAccess& access, const HyperParameters& parameters,
                                const HyperShape& shape, const at::Tensor& streams) {
  const int64_t tokens = streams.size(0);
  const at::TensorOptions sums = streams.options().dtype(accumulate_type(streams.scalar_type()));
  const HyperReadResult result{
      {at::empty({tokens, shape.width}, streams.options()),
       at::empty({tokens, shape.streams}, sums),
       at::empty({tokens, shape.streams, shape.streams}, sums)},
      product(streams.view({tokens, shape.flat_width()}), access.weights->weight(parameters.fn)),
      at::empty({tokens}, sums)};
  for_device_type(streams.scalar_type(), [&]<typename T>() {
    cuda::hyper_read_forward<T>(
        shape, read_inputs<T>(access, parameters, streams), tokens,
        device_data<Accumulate<T>>(result.raw),
        {device_data<T>(result.read.x_in), device_data<Accumulate<T>>(result.read.write),
         device_data<Accumulate<T>>(result.read.mix),
         device_data<Accumulate<T>>(result.inverse_rms)},
        current_stream());
  });
  return result;
}

at::Tensor cuda_hyper_read_backward(const ParameterAccess& access,
                                    const HyperParameters& parameters, const HyperShape& shape,
                                    const at::Tensor& streams, const HyperReadResult& saved,
                                    const HyperRead& gradients) {
  const int64_t tokens = streams.size(0);
  const at::TensorOptions sums = saved.raw.options();
  at::Tensor streams_gradient = at::empty_like(streams);
  const at::Tensor products_gradient = at::empty({tokens, shape.maps()}, streams.options());
  const at::Tensor terms = at::empty({tokens, cuda::hyper_terms(shape)}, sums);
  const at::Tensor partials =
      at::empty({cuda::hyper_partial_rows(tokens), cuda::hyper_terms(shape)}, sums);
  for_device_type(streams.scalar_type(), [&]<typename T>() {
    using A = Accumulate<T>;
    cuda::hyper_read_backward<T>(
        shape, read_inputs<T>(access, parameters, streams), device_data<const A>(saved.raw),
        device_data<const A>(saved.inverse_rms),
        {device_data<const T>(gradients.x_in), device_data<const A>(gradients.write),
         device_data<const A>(gradients.mix)},
        tokens, device_data<T>(streams_gradient), device_data<T>(products_gradient),
        device_data<A>(terms), device_data<A>(partials),
        device_data<A>(access.gradients->gradient(parameters.base)),
        device_data<A>(access.gradients->gradient(parameters.scale)), current_stream());
  });
  const std::vector<int64_t> flat = {tokens, shape.flat_width()};
  streams_gradient.view(flat).addmm_(products_gradient, access.weights->weight(parameters.fn));
  add_weight_gradient(access, parameters.fn, products_gradient, streams.view(flat));
  return streams_gradient;
}

void cuda_hyper_write(const HyperShape& shape, const HyperWriteTensors& inputs,
                      const at::Tensor& streams_out) {
  for_device_type(streams_out.scalar_type(), [&]<typename T>() {
    cuda::hyper_write_forward<T>(shape, write_inputs<T>(inputs), streams_out.size(0),
                                 device_data<T>(streams_out), current_stream());
  });
}

void cuda_hyper_write_backward(const HyperShape& shape, const HyperWriteTensors& inputs,
                               const at::Tensor& streams_out_gradient,
                               const HyperWriteTensors& gradients) {
  for_device_type(inputs.streams.scalar_type(), [&]<typename T>() {
    cuda::hyper_write_backward<T>(
        shape, write_inputs<T>(inputs), device_data<const T>(streams_out_gradient),
        inputs.streams.size(0),
        {device_data<T>(gradients.streams), device_data<T>(gradients.y),
         device_data<Accumulate<T>>(gradients.write), device_data<Accumulate<T>>(gradients.mix)},
        current_stream());
  });
}

at::Tensor cuda_router_logits(const at::Tensor& x, const at::Tensor& weight) {
  return product(x, weight);
}

void cuda_router_choose(const RouterShape& shape, const at::Tensor& logits, const at::Tensor& bias,
                        const at::Tensor& ids) {
  for_sums_type(logits.scalar_type(), [&]<typename Real>() {
    cuda::router_choose<Real>(shape, device_data<const Real>(logits),
                              bias.defined() ? device_data<const Real>(bias) : nullptr,
                              logits.size(0), device_data<int32_t>(ids), current_stream());
  });
}

void cuda_router_weights(const RouterShape& shape, const at::Tensor& logits, const at::Tensor& ids,
                         const at::Tensor& scores, const at::Tensor& weights) {
  for_sums_type(logits.scalar_type(), [&]<typename Real>() {
    cuda::router_weights<Real>(
        shape, device_data<const Real>(logits), device_data<const int32_t>(ids), logits.size(0),
        device_data<Real>(scores), device_data<Real>(weights), current_stream());
  });
}

at::Tensor cuda_router_backward(const ParameterAccess& access, ParameterId weight,
                                const RouterShape& shape, const at::Tensor& x,
                                const RouterChoice& choice, const at::Tensor& dweights) {
  const at::Tensor dlogits = at::empty({x.size(0), shape.experts}, choice.scores.options());
  for_sums_type(dlogits.scalar_type(), [&]<typename Real>() {
    cuda::router_backward<Real>(
        shape, device_data<const int32_t>(choice.ids), device_data<const Real>(choice.scores),
        device_data<const Real>(choice.weights), device_data<const Real>(dweights), x.size(0),
        device_data<Real>(dlogits), current_stream());
  });
  at::Tensor& gradient = access.gradients->gradient(weight);
  const at::Tensor& w = access.weights->weight(weight);
  if (x.scalar_type() == dlogits.scalar_type()) {
    gradient.addmm_(dlogits.t(), x);
    return at::mm(dlogits, w);
  }
  const auto [high, low] = two_parts(dlogits);
  add_product(gradient, high.t(), x);
  add_product(gradient, low.t(), x);
  at::Tensor dx = at::mm(high, w, dlogits.scalar_type());
  add_product(dx, low, w);
  return dx.to(x.scalar_type());
}

}  // namespace longspan
