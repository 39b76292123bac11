// AdamW and the norm of the gradient on a GPU: twins of kernels/cpu/adamw.h.
//
//   cuda::adamw_update(step, elements, gradient, weight, m, v, rounded, stream);
//   cuda::add_squared_norm(gradient, elements, partials, sum, stream);
//
// The update also leaves the new weight in bfloat16, for the products of the next step: one pass
// over the state for both. Sums of squares are doubles of fixed pieces, added in order.
#pragma once

#include "kernels/cpu/adamw.h"
#include "kernels/cuda/cuda_types.h"

namespace longspan::cuda {

// `rounded` may be null.
template <typename Real>
void adamw_update(const AdamWStep& step, int64_t elements, const Real* gradient, Real* weight,
                  Real* first_moment, Real* second_moment, Bf16* rounded, Stream stream);

// Doubles of work space that add_squared_norm needs.
inline constexpr int64_t kSquaredNormPartials = 1024;

// *sum += the sum of squares.
template <typename Real>
void add_squared_norm(const Real* values, int64_t elements, double* partials, double* sum,
                      Stream stream);

}  // namespace longspan::cuda
