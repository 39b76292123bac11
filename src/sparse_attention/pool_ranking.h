// Lists of the best pools of queries, on the device where the tensors lie.
//
//   std::unique_ptr<PoolRanking> ranking = make_pool_ranking(shape, q.options(), work_bytes);
//   ranking->score({q, weights, lists, first_position}, {{keys, first_pool}});
//   ranking->merge(arrived, lists);                             // exact, in any order
//   at::Tensor selected = selected_pools(shape, layout, piece, lists.pools_TB, width, device);
//
// Two implementations behind one interface: kernels/cpu/index_scoring.h with queries dealt to
// threads, and kernels/cuda/{index_scoring,top_pools}.h. The order is the same on both: higher
// score first, then the lower pool. Work buffers stay under `work_bytes`, those of all threads
// together. Scores have the accumulation type. Thread contract: the rank's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>

#include "kernels/sparse_attention_shape.h"
#include "layout/token_layout.h"

namespace longspan {

// Lists of as many rows, each in order, with pool -1 behind the last.
struct PoolLists {
  at::Tensor scores_TB;
  at::Tensor pools_TB;  // int32
};

// Queries of one document at consecutive positions, and their lists.
struct RankedQueries {
  at::Tensor q_TJD;
  at::Tensor weights_TJ;
  PoolLists lists;
  int64_t first_position = 0;
};

// Pools of the same document, consecutive from `first_pool` on.
struct RankedPools {
  at::Tensor keys_PD;
  int64_t first_pool = 0;
};

class PoolRanking {
 public:
  virtual ~PoolRanking() = default;

  // Merges the pools that each query sees into its list. Queries that need not choose may be
  // passed over.
  virtual void score(const RankedQueries& queries, std::span<const RankedPools> pools) = 0;
  virtual void merge(const PoolLists& from, const PoolLists& into) = 0;
};

// For queries of these options (type and device).
std::unique_ptr<PoolRanking> make_pool_ranking(const IndexShape& shape,
                                               const at::TensorOptions& options,
                                               int64_t work_bytes);

// Whether scores run on the kernels made for speed: on a GPU in bfloat16 with 32 heads of 128, on
// tensor cores. UserError if the device has no lists for so many pools.
bool scoring_is_fast(const IndexShape& shape, at::ScalarType type, at::Device device);

// Of each query of the piece the selected pools [T, width], ascending, then -1: those of its list
// if it must choose, else all it sees. Without lists (undefined) nobody may have to choose.
at::Tensor selected_pools(const IndexShape& shape, const TokenLayout& layout, const Range& piece,
                          const at::Tensor& lists_TB, int64_t width, at::Device device);

}  // namespace longspan
