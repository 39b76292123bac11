// Private to kernels/cuda: index scores in bfloat16 on Hopper's tensor cores (sm_90a).
//
//   if (hopper_index_scores_run()) hopper_index_scores(block, stream);
//
// The same meaning as index_scoring.h; 32 heads of width 128 only.
#pragma once

#include "kernels/cuda/cuda_types.h"

namespace longspan::cuda {

// What a query sees of the pools of a block.
struct IndexVisibility {
  int64_t first_position = 0;
  int64_t pool_tokens = 1;
  int64_t first_pool = 0;

#ifdef __CUDACC__
  __host__ __device__
#endif
      int64_t
      pools(int64_t query) const {
    return (first_position + query + 1) / pool_tokens - first_pool;
  }
};

struct FastIndexScores {
  const Bf16* q = nullptr;  // [queries, 32, 128]
  const Bf16* head_weights = nullptr;
  int64_t queries = 0;
  const Bf16* keys = nullptr;  // [pools, 128]
  int64_t pools = 0;
  IndexVisibility visibility;
  float scale = 1;
  float* scores = nullptr;
  int64_t row_stride = 0;
};

// Whether the current GPU is one.
bool hopper_index_scores_run();

// `seen`: pools that the last query sees.
void hopper_index_scores(const FastIndexScores& of, int64_t seen, Stream stream);

}  // namespace longspan::cuda
