#include "layers/ops.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>

#include "layers/layer_node.h"
#include "layers/row_ops.h"
#include "layers/weight_gradient.h"

namespace longspan {
namespace {

using c10::AutoGradMode;

}  // namespace

std::vector<at::Tensor> norm_linear(const ParameterAccess& access, const at::Tensor& x_TC,
                                    ParameterId norm, double epsilon,
                                    std::span<const ParameterId> projections) {
  const std::vector<ParameterId> ids(projections.begin(), projections.end());
  Tensors outputs;
  at::Tensor inverse_rms;
  {
    const AutoGradMode off(false);
    NormOutput normed = norm_forward(x_TC, access.weights->weight(norm), epsilon);
    inverse_rms = std::move(normed.inverse_rms);
    for (const ParameterId id : ids) {
      outputs.push_back(at::mm(normed.y, access.weights->weight(id).t()));
    }
  }
  connect(outputs, {x_TC}, {x_TC, inverse_rms},
          [access, norm, ids](const Tensors& dy, const Tensors& saved) {
            at::Tensor dnormed = at::mm(dy[0], access.weights->weight(ids[0]));
            for (size_t i = 1; i < ids.size(); ++i) {
              dnormed.addmm_(dy[i], access.weights->weight(ids[i]));
            }
            // One pass gives dx, in place of dnormed, and the normed input again, for the weights.
            at::Tensor normed;
            norm_backward(saved[0], access.weights->weight(norm), saved[1], dnormed,
                          access.gradients->gradient(norm), dnormed, &normed);
            for (size_t i = 0; i < ids.size(); ++i) {
              add_weight_gradient(access, ids[i], dy[i], normed);
            }
            return Tensors{dnormed};
          });
  return outputs;
}

at::Tensor project(const ParameterAccess& access, const at::Tensor& x, ParameterId weight) {
  at::Tensor y;
  {
    const AutoGradMode off(false);
    y = at::mm(x, access.weights->weight(weight).t());
  }
  connect({y}, {x}, {x}, [access, weight](const Tensors& dy, const Tensors& saved) {
    add_weight_gradient(access, weight, dy[0], saved[0]);
    return Tensors{at::mm(dy[0], access.weights->weight(weight))};
  });
  return y;
}

at::Tensor linear(const ParameterAccess& access, const at::Tensor& x, ParameterId weight,
                  const at::Tensor& residual) {
  at::Tensor y;
  {
    const AutoGradMode off(false);
    y = at::addmm(residual, x, access.weights->weight(weight).t());
  }
  connect({y}, {x, residual}, {x}, [access, weight](const Tensors& dy, const Tensors& saved) {
    add_weight_gradient(access, weight, dy[0], saved[0]);
    return Tensors{at::mm(dy[0], access.weights->weight(weight)), dy[0]};
  });
  return y;
}

at::Tensor head_norm(const ParameterAccess& access, const at::Tensor& q_THK, ParameterId norm,
                     double epsilon) {
  NormOutput normed;
  {
    const AutoGradMode off(false);
    normed = norm_forward(q_THK, access.weights->weight(norm), epsilon);
  }
  connect({normed.y}, {q_THK}, {q_THK, normed.inverse_rms},
          [access, norm](const Tensors& dy, const Tensors& saved) {
            const at::Tensor dq = at::empty_like(saved[0]);
            norm_backward(saved[0], access.weights->weight(norm), saved[1], dy[0].contiguous(),
                          access.gradients->gradient(norm), dq, nullptr);
            return Tensors{dq};
          });
  return normed.y;
}

at::Tensor rope(const at::Tensor& q_THK, const std::shared_ptr<const RopeTable>& table) {
  at::Tensor rotated;
  {
    const AutoGradMode off(false);
    rotated = rotate(q_THK, *table, 1);
  }
  connect({rotated}, {q_THK}, {}, [table](const Tensors& dy, const Tensors&) {
    return Tensors{rotate(dy[0].contiguous(), *table, -1)};
  });
  return rotated;
}

at::Tensor swiglu_linear(const ParameterAccess& access, const at::Tensor& gate_TF,
                         const at::Tensor& up_TF, ParameterId weight, const at::Tensor& residual_TC,
                         double limit) {
  const bool has_residual = residual_TC.defined();
  at::Tensor y;
  {
    const AutoGradMode off(false);
    const at::Tensor product = swiglu(gate_TF, up_TF, limit);
    const at::Tensor transposed = access.weights->weight(weight).t();
    y = has_residual ? at::addmm(residual_TC, product, transposed) : at::mm(product, transposed);
  }
  Tensors inputs = {gate_TF, up_TF};
  if (has_residual) inputs.push_back(residual_TC);
  connect({y}, inputs, {gate_TF, up_TF},
          [access, weight, has_residual, limit](const Tensors& dy, const Tensors& saved) {
            const at::Tensor dup = at::mm(dy[0], access.weights->weight(weight));
            const SwigluGradient gradient = swiglu_backward(saved[0], saved[1], dup, limit);
            add_weight_gradient(access, weight, dy[0], gradient.y);
            Tensors gradients = {gradient.dgate, dup};
            if (has_residual) gradients.push_back(dy[0]);
            return gradients;
          });
  return y;
}

}  // namespace longspan
