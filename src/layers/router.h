// The router of a mixture of experts: which experts a token goes to, and with what weights.
//
//   const Routing routing = route(access, x_TC, {ids.router, ids.router_bias}, options, kept_ids);
//   kept_ids = routing.ids_TK;                       // a repeated forward repeats its choices
//
// Logits, scores and weights are formed in the accumulation type; the choice, its tie rule and the
// weights stand in kernels/cpu/router.h. The selection bias takes part in the choice alone and gets
// no gradient. With `kept_ids` nothing is chosen: the weights are formed for those experts, in the
// order given.
// Legend: T tokens, C model width, E experts, K chosen. Weight [E, C], bias [E].
// What is kept: x, the ids, and two numbers for each of them.
// Thread contract: as ops.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "layers/parameter_access.h"

namespace longspan {

struct RouterParameters {
  ParameterId weight = -1;
  ParameterId selection_bias = -1;  // -1: none
};

struct RouterOptions {
  int64_t top_k = 1;
  bool normalized = true;  // the weights of a token sum to `scale`
  double scale = 1;
  // Experts chosen within the best `chosen_groups` of `groups` groups: only 1 of 1 is implemented.
  int64_t groups = 1;
  int64_t chosen_groups = 1;
};

struct Routing {
  at::Tensor ids_TK;      // int32, ascending in a row unless they were given
  at::Tensor weights_TK;  // differentiable in x
};

// `kept_ids_TK`: undefined, or the ids of an earlier forward.
Routing route(const ParameterAccess& access, const at::Tensor& x_TC,
              const RouterParameters& parameters, const RouterOptions& options,
              const at::Tensor& kept_ids_TK);

}  // namespace longspan
