#include "layers/hyper_connection.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "base/check.h"
#include "device/device.h"
#include "kernels/cpu/hyper_connection.h"
#include "kernels/cpu/rms_norm.h"
#include "layers/cuda_hybrid_ops.h"
#include "layers/layer_node.h"
#include "layers/ordered_products.h"
#include "layers/parallel_ranges.h"
#include "layers/real_types.h"

namespace longspan {
namespace {

using c10::AutoGradMode;

constexpr int64_t kGrainElements = 16384;

int64_t grain_rows(const HyperShape& shape) {
  return std::max<int64_t>(1, kGrainElements / shape.flat_width());
}

HyperShape shape_of(const at::Tensor& streams_TNC, const HyperOptions& options) {
  LONGSPAN_CHECK(streams_TNC.dim() == 3 && streams_TNC.is_contiguous() &&
                     streams_TNC.size(1) >= 1 && streams_TNC.size(1) <= kMaxHyperStreams &&
                     streams_TNC.size(2) >= 1 && options.sinkhorn_rounds >= 1,
                 "streams ", streams_TNC.sizes(), ", at most ", kMaxHyperStreams, "; ",
                 options.sinkhorn_rounds, " rounds");
  const HyperShape shape{streams_TNC.size(1), streams_TNC.size(2), options.sinkhorn_rounds,
                         options.norm_epsilon, options.epsilon};
  if constexpr (kBuiltWithCuda) {
    if (streams_TNC.is_cuda()) require_hyper_kernels(shape);
  }
  return shape;
}

void check_tensor(const at::Tensor& tensor, const at::Tensor& streams, at::ScalarType type,
                  std::initializer_list<int64_t> sizes, const char* what) {
  LONGSPAN_CHECK(tensor.is_contiguous() && tensor.sizes() == at::IntArrayRef(sizes) &&
                     tensor.scalar_type() == type,
                 what, " ", tensor.toString(), " ", tensor.sizes(), " for streams ",
                 streams.toString(), " ", streams.sizes());
}

// Of the streams' type.
void check_alike(const at::Tensor& tensor, const at::Tensor& streams,
                 std::initializer_list<int64_t> sizes, const char* what) {
  check_tensor(tensor, streams, streams.scalar_type(), sizes, what);
}

// Of their accumulation type.
void check_map(const at::Tensor& tensor, const at::Tensor& streams,
               std::initializer_list<int64_t> sizes, const char* what) {
  check_tensor(tensor, streams, accumulate_type(streams.scalar_type()), sizes, what);
}

void check_parameters(const ParameterAccess& access, const HyperParameters& parameters,
                      const HyperShape& shape, const at::Tensor& streams) {
  check_alike(access.weights->weight(parameters.fn), streams, {shape.maps(), shape.flat_width()},
              "fn");
  check_map(access.weights->weight(parameters.base), streams, {shape.maps()}, "base");
  check_map(access.weights->weight(parameters.scale), streams, {3}, "scale");
}

template <typename Real>
HyperReadInputs<Real> read_inputs(const ParameterAccess& access, const HyperParameters& parameters,
                                  const at::Tensor& streams) {
  return {streams.const_data_ptr<Real>(),
          access.weights->weight(parameters.base).const_data_ptr<Real>(),
          access.weights->weight(parameters.scale).const_data_ptr<Real>()};
}

HyperReadResult read_forward(const ParameterAccess& access, const HyperParameters& parameters,
                             const HyperShape& shape, const at::Tensor& streams) {
  if constexpr (kBuiltWithCuda) {
    if (streams.is_cuda()) return cuda_hyper_read(access, parameters, shape, streams);
  }
  const int64_t tokens = streams.size(0);
  const int64_t n = shape.streams;
  const at::TensorOptions like = streams.options();
  HyperReadResult result{{at::empty({tokens, shape.width}, like), at::empty({tokens, n}, like),
                          at::empty({tokens, n, n}, like)},
                         ordered_linear(streams.view({tokens, shape.flat_width()}),
                                        access.weights->weight(parameters.fn)),
                         at::empty({tokens}, like)};
  for_real_type(streams.scalar_type(), [&]<typename Real>() {
    const auto inputs = read_inputs<Real>(access, parameters, streams);
    const HyperReadOutputs<Real> outputs{
        result.read.x_in.mutable_data_ptr<Real>(), result.read.write.mutable_data_ptr<Real>(),
        result.read.mix.mutable_data_ptr<Real>(), result.inverse_rms.mutable_data_ptr<Real>()};
    parallel_ranges({0, tokens}, grain_rows(shape), [&](Range rows) {
      hyper_read_forward(shape, inputs, rows, result.raw.mutable_data_ptr<Real>(), outputs);
    });
  });
  return result;
}

// Gradients of x_in, write, mix -> of the streams; adds those of the parameters.
at::Tensor read_backward(const ParameterAccess& access, const HyperParameters& parameters,
                         const HyperShape& shape, const Tensors& gradients, const Tensors& saved) {
  const at::Tensor& streams = saved[0];
  const at::Tensor& raw = saved[1];
  const at::Tensor dx_in = gradients[0].contiguous();
  const at::Tensor dwrite = gradients[1].contiguous();
  const at::Tensor dmix = gradients[2].contiguous();
  if constexpr (kBuiltWithCuda) {
    if (streams.is_cuda()) {
      return cuda_hyper_read_backward(access, parameters, shape, streams, {{}, raw, saved[2]},
                                      {dx_in, dwrite, dmix});
    }
  }
  const int64_t tokens = streams.size(0);
  const int64_t sums_width = shape.maps() + 3;
  const int64_t blocks = (tokens + kHyperBlockRows - 1) / kHyperBlockRows;
  at::Tensor streams_gradient = at::empty_like(streams);
  const at::Tensor products_gradient = at::empty_like(raw);
  const at::Tensor partials = at::zeros({blocks, sums_width}, streams.options());
  for_real_type(streams.scalar_type(), [&]<typename Real>() {
    const auto inputs = read_inputs<Real>(access, parameters, streams);
    parallel_ranges({0, blocks}, 1, [&](Range part) {
      for (int64_t block = part.begin; block < part.end; ++block) {
        hyper_read_backward(
            shape, inputs, raw.const_data_ptr<Real>(), saved[2].const_data_ptr<Real>(),
            {dx_in.const_data_ptr<Real>(), dwrite.const_data_ptr<Real>(),
             dmix.const_data_ptr<Real>()},
            {block * kHyperBlockRows, std::min(tokens, (block + 1) * kHyperBlockRows)},
            streams_gradient.mutable_data_ptr<Real>(), products_gradient.mutable_data_ptr<Real>(),
            partials.mutable_data_ptr<Real>() + block * sums_width);
      }
    });
    std::vector<Real> sums(static_cast<size_t>(sums_width), Real{0});
    add_partials(partials.const_data_ptr<Real>(), blocks, sums_width, sums.data());
    Real* dbase = access.gradients->gradient(parameters.base).mutable_data_ptr<Real>();
    Real* dscale = access.gradients->gradient(parameters.scale).mutable_data_ptr<Real>();
    add_partials(sums.data(), 1, shape.maps(), dbase);
    add_partials(sums.data() + shape.maps(), 1, 3, dscale);
  });
  const std::vector<int64_t> flat = {tokens, shape.flat_width()};
  ordered_linear_backward(products_gradient, access.weights->weight(parameters.fn),
                          streams.view(flat), streams_gradient.view(flat),
                          access.gradients->gradient(parameters.fn));
  return streams_gradient;
}

template <typename Real>
HyperWriteInputs<Real> write_inputs(const Tensors& tensors) {
  return {tensors[0].const_data_ptr<Real>(), tensors[1].const_data_ptr<Real>(),
          tensors[2].const_data_ptr<Real>(), tensors[3].const_data_ptr<Real>()};
}

at::Tensor write_forward(const HyperShape& shape, const Tensors& inputs) {
  at::Tensor streams_out = at::empty_like(inputs[0]);
  if constexpr (kBuiltWithCuda) {
    if (streams_out.is_cuda()) {
      cuda_hyper_write(shape, {inputs[0], inputs[1], inputs[2], inputs[3]}, streams_out);
      return streams_out;
    }
  }
  for_real_type(streams_out.scalar_type(), [&]<typename Real>() {
    parallel_ranges({0, streams_out.size(0)}, grain_rows(shape), [&](Range rows) {
      hyper_write_forward(shape, write_inputs<Real>(inputs), rows,
                          streams_out.mutable_data_ptr<Real>());
    });
  });
  return streams_out;
}

// Gradient of the streams after -> of streams, y, write, mix.
Tensors write_backward(const HyperShape& shape, const at::Tensor& gradient, const Tensors& saved) {
  Tensors results;
  for (const at::Tensor& input : saved) results.push_back(at::empty_like(input));
  if constexpr (kBuiltWithCuda) {
    if (gradient.is_cuda()) {
      cuda_hyper_write_backward(shape, {saved[0], saved[1], saved[2], saved[3]}, gradient,
                                {results[0], results[1], results[2], results[3]});
      return results;
    }
  }
  for_real_type(gradient.scalar_type(), [&]<typename Real>() {
    const HyperWriteGradients<Real> outputs{
        results[0].mutable_data_ptr<Real>(), results[1].mutable_data_ptr<Real>(),
        results[2].mutable_data_ptr<Real>(), results[3].mutable_data_ptr<Real>()};
    parallel_ranges({0, gradient.size(0)}, grain_rows(shape), [&](Range rows) {
      hyper_write_backward(shape, write_inputs<Real>(saved), gradient.const_data_ptr<Real>(), rows,
                           outputs);
    });
  });
  return results;
}

}  // namespace

HyperRead hyper_read(const ParameterAccess& access, const at::Tensor& streams_TNC,
                     const HyperParameters& parameters, const HyperOptions& options) {
  const HyperShape shape = shape_of(streams_TNC, options);
  check_parameters(access, parameters, shape, streams_TNC);
  HyperReadResult result;
  {
    const AutoGradMode off(false);
    result = read_forward(access, parameters, shape, streams_TNC);
  }
  const HyperRead& read = result.read;
  connect({read.x_in, read.write, read.mix}, {streams_TNC},
          {streams_TNC, result.raw, result.inverse_rms},
          [access, parameters, shape](const Tensors& gradients, const Tensors& saved) {
            return Tensors{read_backward(access, parameters, shape, gradients, saved)};
          });
  return read;
}

at::Tensor hyper_write(const at::Tensor& streams_TNC, const at::Tensor& y_TC,
                       const at::Tensor& write_TN, const at::Tensor& mix_TNN) {
  const HyperShape shape = shape_of(streams_TNC, {});
  const int64_t tokens = streams_TNC.size(0);
  check_alike(y_TC, streams_TNC, {tokens, shape.width}, "y");
  check_map(write_TN, streams_TNC, {tokens, shape.streams}, "write");
  check_map(mix_TNN, streams_TNC, {tokens, shape.streams, shape.streams}, "mix");
  const Tensors inputs = {streams_TNC, y_TC, write_TN, mix_TNN};
  at::Tensor streams_out;
  {
    const AutoGradMode off(false);
    streams_out = write_forward(shape, inputs);
  }
  connect({streams_out}, inputs, inputs, [shape](const Tensors& gradients, const Tensors& saved) {
    return write_backward(shape, gradients[0].contiguous(), saved);
  });
  return streams_out;
}

at::Tensor streams_mean(const at::Tensor& streams_TNC) {
  const HyperShape shape = shape_of(streams_TNC, {});
  at::Tensor mean;
  {
    const AutoGradMode off(false);
    mean = at::mean(streams_TNC, 1);
  }
  connect({mean}, {streams_TNC}, {}, [shape](const Tensors& gradients, const Tensors&) {
    const at::Tensor& d = gradients[0];
    return Tensors{d.div(static_cast<double>(shape.streams))
                       .unsqueeze(1)
                       .expand({d.size(0), shape.streams, shape.width})
                       .contiguous()};
  });
  return mean;
}

}  // namespace longspan
