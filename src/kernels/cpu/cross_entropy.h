// Softmax cross-entropy on rows of logits: loss = log(sum(exp(logits))) - logits[target].
//
// Why: logits are the largest activation of a small model. The gradient replaces them in place, so
// a chunk of rows needs one buffer; losses come out as double, one number a row.
//
//   cross_entropy_losses(logits, targets, {0, rows}, vocabulary, losses);                // eval
//   cross_entropy_gradient(logits, targets, weights, scale, {0, rows}, vocabulary, losses); //
//   train
//
// The gradient of row t is weights[t] * scale * (softmax - onehot(target)); scale is one over the
// step's sum of loss weights. Every row needs a target in [0, vocabulary): give rows without one
// weight 0 and any target. Sums are exact to fp32 rounding of 1024-term blocks for any vocabulary.
// Thread contract: pure on disjoint rows.
#pragma once

#include <cstdint>

#include "base/range.h"

namespace longspan {

template <typename Real>
void cross_entropy_losses(const Real* logits, const int32_t* targets, Range rows,
                          int64_t vocabulary, double* losses);

template <typename Real>
void cross_entropy_gradient(Real* logits, const int32_t* targets, const float* weights,
                            double scale, Range rows, int64_t vocabulary, double* losses);

}  // namespace longspan
