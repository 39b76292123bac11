// The options of AdamW, and the factor of clipping by the global norm. The loop over elements, with
// the formulas, is kernels/cpu/adamw.h.
//
// Weight decay is decoupled, and zero for parameters whose decay flag is off (norms, by
// convention).
//
//   AdamWOptions options;  options.weight_decay = 0.1;
//   const double factor = clip_factor(norm, 1.0);      // gradients are multiplied by it
//
// Plain values and pure functions; any thread.
#pragma once

namespace longspan {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
};

// 1 if norm <= max_norm or max_norm is 0 (clipping off), else max_norm / norm. UserError if
// max_norm is negative or not a number; InternalError if norm is.
double clip_factor(double norm, double max_norm);

}  // namespace longspan
