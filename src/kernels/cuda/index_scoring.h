// Index scores of a block of queries against a block of pools on a GPU.
//
//   cuda::index_scores<Bf16>(shape, {q, weights, first_position, count}, {keys, first_pool, pools},
//                            {scores, pools}, stream);
//   cuda::enter_top_pools(...)                      // top_pools.h: what beats the lists enters
//   them
//
// Why blocks of scores and not the lists alone: a score of 4 bytes replaces `heads` products that
// never leave the registers, and a block is small enough for the work buffer of any length of
// document. Products of bfloat16 with 32 heads of width 128 run on tensor cores; other shapes and
// types run plain loops. Either way a score has the same bits wherever its query and its pool stand
// in blocks: its products and sums always take the same steps.
//
// Pools that no query of the block sees are left unwritten, as far as whole tiles of them go.
#pragma once

#include "kernels/cuda/cuda_types.h"
#include "kernels/sparse_attention_shape.h"

namespace longspan::cuda {

// Queries of one document at consecutive positions: q [count, J, D], head weights [count, J].
template <typename T>
struct IndexQueryRows {
  const T* q = nullptr;
  const T* head_weights = nullptr;
  int64_t first_position = 0;
  int64_t count = 0;
};

// Pools of the same document, consecutive from `first_pool` on: keys [count, D].
template <typename T>
struct IndexPoolRows {
  const T* keys = nullptr;
  int64_t first_pool = 0;
  int64_t count = 0;
};

// Scores [queries, pools], `row_stride` apart.
template <typename A>
struct IndexScoreBlock {
  A* scores = nullptr;
  int64_t row_stride = 0;
};

// Whether scores of this shape and type run on tensor cores.
template <typename T>
bool index_scores_are_fast(const IndexShape& shape);

template <typename T>
void index_scores(const IndexShape& shape, const IndexQueryRows<T>& queries,
                  const IndexPoolRows<T>& pools, const IndexScoreBlock<Accumulate<T>>& block,
                  Stream stream);

}  // namespace longspan::cuda
