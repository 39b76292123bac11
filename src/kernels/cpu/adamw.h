// AdamW over flat arrays: one pass that reads the gradient and updates weight and both moments.
//
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2         with g = gradient * scale
//   w = w (1 - lr decay) - lr / (1 - beta1^step) * m / (sqrt(v / (1 - beta2^step)) + epsilon)
//
// Why: sharded states are flat slices of many parameters; the update of an element needs nothing
// but that element, so a slice may start and end anywhere. The clip factor comes in as
// gradient_scale instead of a pass of its own.
//
//   adamw_update({.learning_rate = 3e-4, .step = 1}, {0, n}, gradient, weight, m, v);
//   const double norm = std::sqrt(squared_norm(gradient, {0, n}));
//
// Thread contract: pure on disjoint ranges.
#pragma once

#include <cstdint>

#include "base/range.h"

namespace longspan {

struct AdamWStep {
  double learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double gradient_scale = 1;
  int64_t step = 1;  // counts from 1
};

template <typename Real>
void adamw_update(const AdamWStep& step, Range elements, const Real* gradient, Real* weight,
                  Real* first_moment, Real* second_moment);

// Sum of squares in double. Callers that use threads cut at fixed places and add in order.
template <typename Real>
double squared_norm(const Real* values, Range elements);

}  // namespace longspan
