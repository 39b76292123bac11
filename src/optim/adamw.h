// The options of AdamW and the arithmetic around it that needs no array: bias corrections and the
// factor of clipping by the global norm. The loop over elements is kernels/cpu/adamw.h.
//
// Decoupled weight decay: w -= lr * weight_decay * w, then w -= lr * m^ / (sqrt(v^) + eps), where
// m^ and v^ are corrected for the moments having started at zero. Parameters whose decay flag is
// off (norms, by convention) are not decayed.
//
//   AdamWOptions options;  options.weight_decay = 0.1;
//   const double factor = clip_factor(norm, 1.0);      // gradients are multiplied by it
//
// Plain values and pure functions; any thread.
#pragma once

#include <cstdint>

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

// 1 - beta^step, the correction of a moment after its step-th update; step >= 1.
double bias_correction(double beta, int64_t step);

}  // namespace longspan
