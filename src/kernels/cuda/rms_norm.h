// RMSNorm on rows, on a GPU: twin of kernels/cpu/rms_norm.h.
//
//   cuda::rms_norm_forward(x, weight, 1e-5, rows, width, y, inverse_rms, stream);
//   cuda::rms_norm_backward(x, weight, inverse_rms, dy, rows, width, dx, y, partials, dweight,
//                           stream);
//
// A row is held in registers by a warp or a block, so each direction reads its inputs once.
// `partials` holds rms_norm_partials(...) elements of work space: sums of fixed groups of rows,
// then added in order.
#pragma once

#include "kernels/cuda/cuda_types.h"

namespace longspan::cuda {

// Whether rows of this width fit; "" or why not.
template <typename T>
const char* rms_norm_refusal(int64_t width);

template <typename T>
void rms_norm_forward(const T* x, const T* weight, double epsilon, int64_t rows, int64_t width,
                      T* y, Accumulate<T>* inverse_rms, Stream stream);

template <typename T>
int64_t rms_norm_partials(int64_t rows, int64_t width);

// dx is written, weight_gradient is added to. y, if not null, gets the forward's result, the same
// bits. dx may be dy.
template <typename T>
void rms_norm_backward(const T* x, const T* weight, const Accumulate<T>* inverse_rms, const T* dy,
                       int64_t rows, int64_t width, T* dx, T* y, Accumulate<T>* partials,
                       Accumulate<T>* weight_gradient, Stream stream);

}  // namespace longspan::cuda
