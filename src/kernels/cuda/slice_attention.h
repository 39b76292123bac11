// Core attention of one tile on a GPU, for any type, any head width up to 256 and any diagonal.
//
// Why: the fast kernels run in bfloat16 alone. This one is right everywhere and slow everywhere (it
// uses no tensor cores): runs in float32 and float64, shapes without a fast kernel, and the tests
// of all that surrounds attention. It is used only where the configuration allows it.
//
//   cuda::slice_attention_forward(tile, shape, {q, k, v, ...}, o, lse, stream);
//
// The contract of kernels/cpu/blocked_attention.h: forward merges into o and lse (first o = 0,
// lse = -infinity), backward adds to d_q, d_k, d_v; both in the accumulation type. A warp runs a
// head of a query row (forward, dQ) or of a key (dK, dV), keys and rows in order.
#pragma once

#include "kernels/attention_shape.h"
#include "kernels/cuda/cuda_types.h"

namespace longspan::cuda {

inline constexpr int64_t kSliceAttentionMaxWidth = 256;

// Rows of the tile; *_stride is the distance between rows in elements.
template <typename T>
struct SliceInputs {
  const T* q = nullptr;
  const T* k = nullptr;
  const T* v = nullptr;
  int64_t q_stride = 0;
  int64_t k_stride = 0;
  int64_t v_stride = 0;
};

template <typename T>
void slice_attention_forward(const AttentionTile& tile, const AttentionShape& shape,
                             const SliceInputs<T>& in, Accumulate<T>* o, Accumulate<T>* lse,
                             Stream stream);

// d_o may be strided between rows; lse and delta are those of the whole rows.
template <typename T>
struct SliceGradients {
  const T* d_o = nullptr;
  int64_t d_o_stride = 0;
  const Accumulate<T>* lse = nullptr;
  const Accumulate<T>* delta = nullptr;
  Accumulate<T>* d_q = nullptr;
  Accumulate<T>* d_k = nullptr;
  Accumulate<T>* d_v = nullptr;
};

template <typename T>
void slice_attention_backward(const AttentionTile& tile, const AttentionShape& shape,
                              const SliceInputs<T>& in, const SliceGradients<T>& gradients,
                              Stream stream);

}  // namespace longspan::cuda
