#include "layers/kda_ops.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/rms_norm.h"
#include "layers/cpu_only.h"
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

void check_parameter(const at::Tensor& parameter, int64_t values, const at::Tensor& x) {
  LONGSPAN_CHECK(parameter.is_contiguous() && parameter.numel() == values &&
                     parameter.scalar_type() == x.scalar_type(),
                 "parameter ", parameter.toString(), " ", parameter.sizes(), " for ", x.toString(),
                 " ", x.sizes());
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
    LONGSPAN_CHECK(gradient.is_contiguous(), "an accumulator of sizes ", gradient.sizes(),
                   " is not contiguous");
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

}  // namespace

at::Tensor decay_gate(const ParameterAccess& access, const DecayGate& gate, const at::Tensor& f_THK,
                      const DecayGateParameters& parameters) {
  require_cpu(f_THK, "the decay gates of linear attention");
  check_alike(f_THK, f_THK);
  const GateShape shape{f_THK.size(1), f_THK.size(2)};
  at::Tensor g_THK;
  {
    const AutoGradMode off(false);
    const at::Tensor& a_log = access.weights->weight(parameters.a_log);
    const at::Tensor& dt_bias = access.weights->weight(parameters.dt_bias);
    check_parameter(a_log, shape.heads, f_THK);
    check_parameter(dt_bias, shape.heads * shape.width, f_THK);
    g_THK = at::empty_like(f_THK);
    for_real_type(f_THK.scalar_type(), [&]<typename Real>() {
      for_blocks(f_THK.size(0), [&](int64_t, Range tokens) {
        decay_gate_forward(gate, shape, f_THK.const_data_ptr<Real>(), a_log.const_data_ptr<Real>(),
                           dt_bias.const_data_ptr<Real>(), tokens, g_THK.mutable_data_ptr<Real>());
      });
    });
  }
  connect({g_THK}, {f_THK}, {f_THK},
          [access, gate, shape, parameters](const Tensors& dy, const Tensors& saved) {
            const at::Tensor& f = saved[0];
            const at::Tensor dg = dy[0].contiguous();
            const at::Tensor df = at::empty_like(f);
            const at::Tensor& a_log = access.weights->weight(parameters.a_log);
            const at::Tensor& dt_bias = access.weights->weight(parameters.dt_bias);
            for_real_type(f.scalar_type(), [&]<typename Real>() {
              sum_over_blocks<Real>(f.size(0),
                                    {access.gradients->gradient(parameters.a_log),
                                     access.gradients->gradient(parameters.dt_bias)},
                                    [&](Range tokens, const std::vector<Real*>& sums) {
                                      decay_gate_backward(
                                          gate, shape, f.const_data_ptr<Real>(),
                                          a_log.const_data_ptr<Real>(),
                                          dt_bias.const_data_ptr<Real>(), dg.const_data_ptr<Real>(),
                                          tokens, df.mutable_data_ptr<Real>(), sums[0], sums[1]);
                                    });
            });
            return Tensors{df};
          });
  return g_THK;
}

at::Tensor gated_norm(const ParameterAccess& access, const at::Tensor& o_THV,
                      const at::Tensor& gate_THV, ParameterId weight, double epsilon) {
  require_cpu(o_THV, "the gated norms of linear attention");
  check_alike(o_THV, gate_THV);
  const int64_t width = o_THV.size(2);
  const int64_t rows = o_THV.size(0) * o_THV.size(1);
  at::Tensor y_THV;
  at::Tensor inverse_rms;
  {
    const AutoGradMode off(false);
    const at::Tensor& w = access.weights->weight(weight);
    check_parameter(w, width, o_THV);
    y_THV = at::empty_like(o_THV);
    inverse_rms = at::empty({rows}, o_THV.options());
    for_real_type(o_THV.scalar_type(), [&]<typename Real>() {
      for_blocks(rows, [&](int64_t, Range in_block) {
        gated_norm_forward(o_THV.const_data_ptr<Real>(), gate_THV.const_data_ptr<Real>(),
                           w.const_data_ptr<Real>(), epsilon, in_block, width,
                           y_THV.mutable_data_ptr<Real>(), inverse_rms.mutable_data_ptr<Real>());
      });
    });
  }
  connect({y_THV}, {o_THV, gate_THV}, {o_THV, gate_THV, inverse_rms},
          [access, weight, width, rows](const Tensors& gradients, const Tensors& saved) {
            const at::Tensor dy = gradients[0].contiguous();
            const at::Tensor d_o = at::empty_like(dy);
            const at::Tensor dgate = at::empty_like(dy);
            const at::Tensor& w = access.weights->weight(weight);
            for_real_type(dy.scalar_type(), [&]<typename Real>() {
              sum_over_blocks<Real>(
                  rows, {access.gradients->gradient(weight)},
                  [&](Range in_block, const std::vector<Real*>& sums) {
                    gated_norm_backward(saved[0].const_data_ptr<Real>(),
                                        saved[1].const_data_ptr<Real>(), w.const_data_ptr<Real>(),
                                        saved[2].const_data_ptr<Real>(), dy.const_data_ptr<Real>(),
                                        in_block, width, d_o.mutable_data_ptr<Real>(),
                                        dgate.mutable_data_ptr<Real>(), sums[0]);
                  });
            });
            return Tensors{d_o, dgate};
          });
  return y_THV;
}

}  // namespace longspan
