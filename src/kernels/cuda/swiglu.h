// SwiGLU, element by element, on a GPU: twin of kernels/cpu/swiglu.h, limit included.
//
//   cuda::swiglu_forward(gate, up, limit, n, y, stream);
//   cuda::swiglu_backward(gate, up, limit, dy, n, y, dgate, dup, stream);
//
// The exponential is the precise one, in the accumulation type.
#pragma once

#include "kernels/cuda/cuda_types.h"

namespace longspan::cuda {

template <typename T>
void swiglu_forward(const T* gate, const T* up, double limit, int64_t elements, T* y,
                    Stream stream);

// All three results are written; `dup` may be `dy`.
template <typename T>
void swiglu_backward(const T* gate, const T* up, double limit, const T* dy, int64_t elements, T* y,
                     T* dgate, T* dup, Stream stream);

}  // namespace longspan::cuda
