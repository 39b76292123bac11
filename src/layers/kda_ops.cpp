#include "layers/kda_ops.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "base/check.h"
#include "device/device.h"
#include "kernels/cpu/rms_norm.h"
#include "layers/cuda_kda_ops.h"
#include "layers/layer_node.h"
#include "layers/parallel_ranges.h"
#include "layers/real_types.h"

namespace longspan {
namespace {

using c10::AutoGradMode;

void check_alike(const at::Tensor& a, const at::Tensor& b) {
  LONGSPAN_CHECK(a.dim() == 3 && a.is_contiguous() && b.is_contiguous() && a.sizes() == b.sizes() &&
                     a.scalar_type() == b.scalar_type(),
                 a.toString(), " ", a.sizes(), " and ", b.toString(), " ", b.sizes(),
                 " must be [tokens, heads, width], contiguous and alike");
}

// Parameters of the gate may stay in the accumulation type.
void check_parameter(const at::Tensor& parameter, int64_t values, const at::Tensor& x) {
  const at::ScalarType type = parameter.scalar_type();
  LONGSPAN_CHECK(parameter.is_contiguous() && parameter.numel() == values &&
                     (type == x.scalar_type() || type == accumulate_type(x.scalar_type())),
                 "parameter ", parameter.toString(), " ", parameter.sizes(), " for ", x.toString(),
                 " ", x.sizes());
}

void check_gradient(const at::Tensor& gradient, const at::Tensor& x) {
  LONGSPAN_CHECK(
      gradient.is_contiguous() && gradient.scalar_type() == accumulate_type(x.scalar_type()),
      "an accumulator ", gradient.toString(), " ", gradient.sizes(), " with strides ",
      gradient.strides(), " for ", x.toString());
}

// Calls work(block, rows of the block) for blocks of kKdaSumRows.
template <typename Work>
void for_blocks(int64_t rows, const Work& work) {
  parallel_ranges({0, (rows + kKdaSumRows - 1) / kKdaSumRows}, 1, [&](Range part) {
    for (int64_t block = part.begin; block < part.end; ++block) {
      work(block, Range{block * kKdaSumRows, std::min(rows, (block + 1) * kKdaSumRows)});
    }
  });
}

// Runs work(rows, one partial for each of the gradients) by blocks and adds the partials, in order.
template <typename Real, typename Work>
void sum_over_blocks(int64_t rows, const std::vector<at::Tensor>& gradients, const Work& work) {
  std::vector<at::Tensor> partials;
  for (const at::Tensor& gradient : gradients) {
    const int64_t blocks = (rows + kKdaSumRows - 1) / kKdaSumRows;
    partials.push_back(at::zeros({blocks, gradient.numel()}, gradient.options()));
  }
  for_blocks(rows, [&](int64_t block, Range in_block) {
    std::vector<Real*> of_block;
    for (const at::Tensor& partial : partials) {
      of_block.push_back(partial.mutable_data_ptr<Real>() + block * partial.size(1));
    }
    work(in_block, of_block);
  });
  for (size_t i = 0; i < gradients.size(); ++i) {
    add_partials(partials[i].const_data_ptr<Real>(), partials[i].size(0), partials[i].size(1),
                 gradients[i].mutable_data_ptr<Real>());
  }
}

at::Tensor decay_gate_values(const DecayGate& gate, const at::Tensor& f, const at::Tensor& a_log,
                             const at::Tensor& dt_bias) {
  if constexpr (kBuiltWithCuda) {
    if (f.is_cuda()) return cuda_decay_gate(gate, f, a_log, dt_bias);
  }
  const GateShape shape{f.size(1), f.size(2)};
  at::Tensor g = at::empty_like(f);
  for_real_type(f.scalar_type(), [&]<typename Real>() {
    for_blocks(f.size(0), [&](int64_t, Range tokens) {
      decay_gate_forward(gate, shape, f.const_data_ptr<Real>(), a_log.const_data_ptr<Real>(),
                         dt_bias.const_data_ptr<Real>(), tokens, g.mutable_data_ptr<Real>());
    });
  });
  return g;
}

// df; adds to the gradients of a_log and dt_bias.
at::Tensor decay_gate_gradient(const DecayGate& gate, const at::Tensor& f, const at::Tensor& a_log,
                               const at::Tensor& dt_bias, const at::Tensor& dg,
                               const at::Tensor& a_log_gradient,
                               const at::Tensor& dt_bias_gradient) {
  check_gradient(a_log_gradient, f);
  check_gradient(dt_bias_gradient, f);
  if constexpr (kBuiltWithCuda) {
    if (f.is_cuda()) {
      return cuda_decay_gate_backward(gate, f, a_log, dt_bias, dg, a_log_gradient,
                                      dt_bias_gradient);
    }
  }
  const GateShape shape{f.size(1), f.size(2)};
  at::Tensor df = at::empty_like(f);
  for_real_type(f.scalar_type(), [&]<typename Real>() {
    sum_over_blocks<Real>(f.size(0), {a_log_gradient, dt_bias_gradient},
                          [&](Range tokens, const std::vector<Real*>& sums) {
                            decay_gate_backward(
                                gate, shape, f.const_data_ptr<Real>(), a_log.const_data_ptr<Real>(),
                                dt_bias.const_data_ptr<Real>(), dg.const_data_ptr<Real>(), tokens,
                                df.mutable_data_ptr<Real>(), sums[0], sums[1]);
                          });
  });
  return df;
}

NormOutput gated_norm_values(const at::Tensor& o, const at::Tensor& gate, const at::Tensor& weight,
                             double epsilon) {
  if constexpr (kBuiltWithCuda) {
    if (o.is_cuda()) return cuda_gated_norm(o, gate, weight, epsilon);
  }
  const int64_t rows = o.size(0) * o.size(1);
  NormOutput output{at::empty_like(o), at::empty({rows}, o.options())};
  for_real_type(o.scalar_type(), [&]<typename Real>() {
    for_blocks(rows, [&](int64_t, Range in_block) {
      gated_norm_forward(o.const_data_ptr<Real>(), gate.const_data_ptr<Real>(),
                         weight.const_data_ptr<Real>(), epsilon, in_block, o.size(2),
                         output.y.mutable_data_ptr<Real>(),
                         output.inverse_rms.mutable_data_ptr<Real>());
    });
  });
  return output;
}

// Adds to the weight's gradient.
GatedNormGradient gated_norm_gradient(const at::Tensor& o, const at::Tensor& gate,
                                      const at::Tensor& weight, const at::Tensor& inverse_rms,
                                      const at::Tensor& dy, const at::Tensor& weight_gradient) {
  check_gradient(weight_gradient, o);
  if constexpr (kBuiltWithCuda) {
    if (o.is_cuda()) {
      return cuda_gated_norm_backward(o, gate, weight, inverse_rms, dy, weight_gradient);
    }
  }
  const int64_t rows = o.size(0) * o.size(1);
  GatedNormGradient gradient{at::empty_like(o), at::empty_like(o)};
  for_real_type(o.scalar_type(), [&]<typename Real>() {
    sum_over_blocks<Real>(
        rows, {weight_gradient}, [&](Range in_block, const std::vector<Real*>& sums) {
          gated_norm_backward(
              o.const_data_ptr<Real>(), gate.const_data_ptr<Real>(), weight.const_data_ptr<Real>(),
              inverse_rms.const_data_ptr<Real>(), dy.const_data_ptr<Real>(), in_block, o.size(2),
              gradient.o.mutable_data_ptr<Real>(), gradient.gate.mutable_data_ptr<Real>(), sums[0]);
        });
  });
  return gradient;
}

}  // namespace

at::Tensor decay_gate(const ParameterAccess& access, const DecayGate& gate, const at::Tensor& f_THK,
                      const DecayGateParameters& parameters) {
  check_alike(f_THK, f_THK);
  at::Tensor g_THK;
  {
    const AutoGradMode off(false);
    const at::Tensor& a_log = access.weights->weight(parameters.a_log);
    const at::Tensor& dt_bias = access.weights->weight(parameters.dt_bias);
    check_parameter(a_log, f_THK.size(1), f_THK);
    check_parameter(dt_bias, f_THK.size(1) * f_THK.size(2), f_THK);
    g_THK = decay_gate_values(gate, f_THK, a_log, dt_bias);
  }
  connect({g_THK}, {f_THK}, {f_THK},
          [access, gate, parameters](const Tensors& dy, const Tensors& saved) {
            return Tensors{
                decay_gate_gradient(gate, saved[0], access.weights->weight(parameters.a_log),
                                    access.weights->weight(parameters.dt_bias), dy[0].contiguous(),
                                    access.gradients->gradient(parameters.a_log),
                                    access.gradients->gradient(parameters.dt_bias))};
          });
  return g_THK;
}

at::Tensor gated_norm(const ParameterAccess& access, const at::Tensor& o_THV,
                      const at::Tensor& gate_THV, ParameterId weight, double epsilon) {
  check_alike(o_THV, gate_THV);
  NormOutput output;
  {
    const AutoGradMode off(false);
    const at::Tensor& w = access.weights->weight(weight);
    check_parameter(w, o_THV.size(2), o_THV);
    output = gated_norm_values(o_THV, gate_THV, w, epsilon);
  }
  connect({output.y}, {o_THV, gate_THV}, {o_THV, gate_THV, output.inverse_rms},
          [access, weight](const Tensors& dy, const Tensors& saved) {
            const GatedNormGradient gradient =
                gated_norm_gradient(saved[0], saved[1], access.weights->weight(weight), saved[2],
                                    dy[0].contiguous(), access.gradients->gradient(weight));
            return Tensors{gradient.o, gradient.gate};
          });
  return output.y;
}

}  // namespace longspan
