// Index keys of pools on a GPU: twin of kernels/cpu/pooled_keys.h.
//
//   cuda::pool_keys<Bf16>(keys, gates, pools, 4, width, pooled, stream);
//
// keys, gates [pools * pool_tokens, width] contiguous, pooled [pools, width]. The softmax over a
// pool's tokens and the sum run in the accumulation type; the result is rounded once.
#pragma once

#include "kernels/cuda/cuda_types.h"

namespace longspan::cuda {

template <typename T>
void pool_keys(const T* keys, const T* gates, int64_t pools, int64_t pool_tokens, int64_t width,
               T* pooled, Stream stream);

}  // namespace longspan::cuda
