// What linear attention (KDA) does to q, k and v before the chunks, on a GPU: the short
// convolution with SiLU, and unit rows of q and k. Twin of kernels/cpu/short_convolution.h followed
// by unit_rows of kernels/cpu/kda_rows.h, for all heads and stretches of a piece at once.
//
//   cuda::kda_inputs_forward(places, convolution, qkv, stream);
//   cuda::kda_inputs_backward(places, convolution, d_qkv, {dx, d_before, partials, d_weight},
//                             stream);
//
// The backward computes the forward again; nothing is kept. A warp works through one head of one of
// q, k, v, chunk by chunk. Conventions as in cuda_types.h.
#pragma once

#include "kernels/cuda/kda.h"

namespace longspan::cuda {

inline constexpr int kKdaTaps = 4;  // of the convolution: the only number with a kernel

template <typename T>
struct KdaConvolution {
  const T* x = nullptr;       // [tokens, 3, heads, width]
  const T* before = nullptr;  // [before_rows, 3, heads, width], right before the first stretch
  int64_t before_rows = 0;    // < kKdaTaps
  const T* weight = nullptr;  // [3, heads, kKdaTaps, width]
};

// qkv [3, heads, tokens, row width]; q is scaled by 1 / sqrt(width).
template <typename T>
void kda_inputs_forward(const KdaPlaces& places, const KdaConvolution<T>& in, T* qkv,
                        Stream stream);

template <typename T>
struct KdaConvolutionGradients {
  T* x = nullptr;                     // as the input
  Accumulate<T>* before = nullptr;    // likewise
  Accumulate<T>* partials = nullptr;  // kda_convolution_partials(places): work space
  Accumulate<T>* weight = nullptr;    // as the input; added to
};

int64_t kda_convolution_partials(const KdaPlaces& places);

template <typename T>
void kda_inputs_backward(const KdaPlaces& places, const KdaConvolution<T>& in, const T* d_qkv,
                         const KdaConvolutionGradients<T>& out, Stream stream);

}  // namespace longspan::cuda
