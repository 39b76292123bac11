// Rotary position embedding on a GPU: twin of kernels/cpu/rope.h.
//
//   cuda::rope_table(inverse_frequencies, half, scaling, positions, tokens, cosines, sines,
//   stream); cuda::rope_rotate(q, cosines, sines, tokens, heads, 2 * half, +1, rotated, stream);
//
// Tables have the accumulation type: a bfloat16 angle would turn late positions by whole degrees.
#pragma once

#include "kernels/cuda/cuda_types.h"

namespace longspan::cuda {

// Angles are fp32 products, as in the twin.
template <typename Real>
void rope_table(const float* inverse_frequencies, int64_t half, double scaling,
                const int64_t* positions, int64_t tokens, Real* cosines, Real* sines,
                Stream stream);

// direction +1 turns forward, -1 back. `rotated` may be `q`.
template <typename T>
void rope_rotate(const T* q, const Accumulate<T>* cosines, const Accumulate<T>* sines,
                 int64_t tokens, int64_t heads, int64_t width, int direction, T* rotated,
                 Stream stream);

}  // namespace longspan::cuda
