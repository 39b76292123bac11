#include "layers/router.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "base/check.h"
#include "device/device.h"
#include "kernels/cpu/router.h"
#include "layers/cuda_hybrid_ops.h"
#include "layers/layer_node.h"
#include "layers/ordered_products.h"
#include "layers/parallel_ranges.h"
#include "layers/real_types.h"

namespace longspan {
namespace {

using c10::AutoGradMode;

constexpr int64_t kGrainRows = 64;

RouterShape shape_of(const at::Tensor& x, const at::Tensor& weight, const RouterOptions& options) {
  if (options.groups != 1 || options.chosen_groups != 1) {
    throw UserError(
        text("the router chooses experts without groups, but the model asks for the "
             "best ",
             options.chosen_groups, " of ", options.groups,
             " groups; only n_group = 1, topk_group = 1 can be trained"));
  }
  LONGSPAN_CHECK(
      x.dim() == 2 && x.is_contiguous() && weight.dim() == 2 && weight.size(1) == x.size(1), "x ",
      x.sizes(), ", router ", weight.sizes());
  if (options.top_k < 1 || options.top_k > weight.size(0)) {
    throw UserError(text("the router cannot choose ", options.top_k, " of ", weight.size(0),
                         " experts; mend num_experts_per_tok"));
  }
  const RouterShape shape{weight.size(0), options.top_k, options.normalized, options.scale};
  if constexpr (kBuiltWithCuda) {
    if (x.is_cuda()) require_router_kernels(shape);
  }
  return shape;
}

void check_ids(const at::Tensor& ids, const RouterShape& shape, int64_t tokens) {
  LONGSPAN_CHECK(ids.scalar_type() == at::kInt && ids.is_contiguous() && ids.dim() == 2 &&
                     ids.size(0) == tokens && ids.size(1) == shape.top_k,
                 "expert ids ", ids.toString(), " ", ids.sizes(), " for ", tokens, " tokens and ",
                 shape.top_k, " experts each");
  if (!ids.is_cpu()) return;  // they came from a choice here, or are checked where they are dealt
  const int32_t* values = ids.const_data_ptr<int32_t>();
  const bool within = std::all_of(values, values + ids.numel(),
                                  [&](int32_t id) { return id >= 0 && id < shape.experts; });
  LONGSPAN_CHECK(within, "an expert id is outside of the ", shape.experts, " experts");
}

// In the accumulation type.
at::Tensor logits_of(const at::Tensor& x, const at::Tensor& weight) {
  if constexpr (kBuiltWithCuda) {
    if (x.is_cuda()) return cuda_router_logits(x, weight);
  }
  return ordered_linear(x, weight);
}

at::Tensor choose(const RouterShape& shape, const at::Tensor& logits, const at::Tensor& bias) {
  const int64_t tokens = logits.size(0);
  at::Tensor ids = at::empty({tokens, shape.top_k}, logits.options().dtype(at::kInt));
  if constexpr (kBuiltWithCuda) {
    if (ids.is_cuda()) {
      cuda_router_choose(shape, logits, bias, ids);
      return ids;
    }
  }
  for_real_type(logits.scalar_type(), [&]<typename Real>() {
    const Real* bias_values = bias.defined() ? bias.const_data_ptr<Real>() : nullptr;
    parallel_ranges({0, tokens}, kGrainRows, [&](Range rows) {
      router_choose(shape, logits.const_data_ptr<Real>(), bias_values, rows,
                    ids.mutable_data_ptr<int32_t>());
    });
  });
  return ids;
}

void form_weights(const RouterShape& shape, const at::Tensor& logits, const at::Tensor& ids,
                  const at::Tensor& scores, const at::Tensor& weights) {
  if constexpr (kBuiltWithCuda) {
    if (logits.is_cuda()) return cuda_router_weights(shape, logits, ids, scores, weights);
  }
  for_real_type(logits.scalar_type(), [&]<typename Real>() {
    parallel_ranges({0, logits.size(0)}, kGrainRows, [&](Range rows) {
      router_weights(shape, logits.const_data_ptr<Real>(), ids.const_data_ptr<int32_t>(), rows,
                     scores.mutable_data_ptr<Real>(), weights.mutable_data_ptr<Real>());
    });
  });
}

// Of the weights -> of x; adds that of the router's weight.
at::Tensor weights_backward(const ParameterAccess& access, ParameterId weight,
                            const RouterShape& shape, const at::Tensor& dweights,
                            const Tensors& saved) {
  const at::Tensor& x = saved[0];
  const at::Tensor& ids = saved[1];
  const at::Tensor& scores = saved[2];
  const at::Tensor& weights = saved[3];
  if constexpr (kBuiltWithCuda) {
    if (x.is_cuda()) {
      return cuda_router_backward(access, weight, shape, x, {ids, scores, weights}, dweights);
    }
  }
  const at::Tensor dlogits = at::empty({x.size(0), shape.experts}, scores.options());
  for_real_type(scores.scalar_type(), [&]<typename Real>() {
    parallel_ranges({0, x.size(0)}, kGrainRows, [&](Range rows) {
      router_backward(shape, ids.const_data_ptr<int32_t>(), scores.const_data_ptr<Real>(),
                      weights.const_data_ptr<Real>(), dweights.const_data_ptr<Real>(), rows,
                      dlogits.mutable_data_ptr<Real>());
    });
  });
  at::Tensor dx = at::zeros_like(x);
  ordered_linear_backward(dlogits, access.weights->weight(weight), x, dx,
                          access.gradients->gradient(weight));
  return dx;
}

}  // namespace

Routing route(const ParameterAccess& access, const at::Tensor& x_TC,
              const RouterParameters& parameters, const RouterOptions& options,
              const at::Tensor& kept_ids_TK) {
  const RouterShape shape = shape_of(x_TC, access.weights->weight(parameters.weight), options);
  const int64_t tokens = x_TC.size(0);
  Routing routing;
  at::Tensor scores;
  {
    const AutoGradMode off(false);
    const at::Tensor logits = logits_of(x_TC, access.weights->weight(parameters.weight));
    if (kept_ids_TK.defined()) {
      check_ids(kept_ids_TK, shape, tokens);
      routing.ids_TK = kept_ids_TK;
    } else {
      at::Tensor bias;
      if (parameters.selection_bias >= 0) {
        bias = access.weights->weight(parameters.selection_bias);
        LONGSPAN_CHECK(bias.numel() == shape.experts && bias.is_contiguous() &&
                           bias.scalar_type() == logits.scalar_type(),
                       "selection bias ", bias.toString(), " ", bias.sizes(), " for ",
                       shape.experts, " experts and logits in ", logits.toString());
      }
      routing.ids_TK = choose(shape, logits, bias);
    }
    scores = at::empty({tokens, shape.top_k}, logits.options());
    routing.weights_TK = at::empty_like(scores);
    form_weights(shape, logits, routing.ids_TK, scores, routing.weights_TK);
  }
  const ParameterId weight = parameters.weight;
  connect(
      {routing.weights_TK}, {x_TC}, {x_TC, routing.ids_TK, scores, routing.weights_TK},
      [access, weight, shape](const Tensors& gradients, const Tensors& saved) {
        return Tensors{weights_backward(access, weight, shape, gradients[0].contiguous(), saved)};
      });
  return routing;
}

}  // namespace longspan
