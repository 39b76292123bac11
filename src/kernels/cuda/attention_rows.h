// Row-wise arithmetic around core attention on a GPU: twins of kernels/cpu/attention_rows.h.
//
//   cuda::merge_attention_rows<float, Bf16>(shape, pieces, stream);
//   cuda::attention_delta(shape, rows, o, d_o, delta, stream);
//   cuda::attention_projected_output(shape, rows, d_o, delta, o, stream);
//
// A warp or a part of it runs one head of one row. Merging knows the conventions of foreign
// kernels: a part's LSE may lie head by head, and +infinity there means "no key", as -infinity does
// here.
#pragma once

#include <span>

#include "kernels/attention_shape.h"
#include "kernels/cuda/cuda_types.h"

namespace longspan::cuda {

template <typename A>
struct PartLse {
  const A* data = nullptr;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
};

// Rows with a part of their result.
template <typename O, typename T>
struct MergePiece {
  int64_t rows = 0;
  O* o = nullptr;  // [rows, H, K], and lse [rows, H]
  Accumulate<T>* lse = nullptr;
  const T* part_o = nullptr;
  PartLse<Accumulate<T>> part_lse;
};

// o and lse become those of both parts together, for all pieces in one launch; no row may be in two
// of them. lse has the accumulation type, and o too, unless rows have one part only: then nothing
// is lost in the type of that part.
template <typename O, typename T>
void merge_attention_rows(const AttentionShape& shape, std::span<const MergePiece<O, T>> pieces,
                          Stream stream);

// delta = rowsum(dO * O).
template <typename T>
void attention_delta(const AttentionShape& shape, int64_t rows, const T* o, const T* d_o,
                     Accumulate<T>* delta, Stream stream);

// The part of O along dO, found from delta: o = dO delta / |dO|^2. Its row sum with dO is delta,
// and it is never longer than O. A kernel that wants O for that sum alone can take this instead, so
// O need not travel.
template <typename T>
void attention_projected_output(const AttentionShape& shape, int64_t rows, const T* d_o,
                                const Accumulate<T>* delta, T* o, Stream stream);

}  // namespace longspan::cuda
