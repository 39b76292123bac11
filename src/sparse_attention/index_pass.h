// Ranks pools for the queries of a chunk, on all ranks together, as an attention plan says.
//
// Index queries travel out with their head weights, pool keys with the key ranges that hold their
// last tokens; back come lists of the best pools, which merge exactly in any order
// (pool_ranking.h). Rounds, groups and relays are those of the plan (planner/attention_plan.h), as
// in core attention. All stays on the device where the queries lie.
//
//   IndexPass pass(shape, plan, axis, layout, comm, {.tag = tag, .op = "index, layer 3, chunk 1"});
//   at::Tensor pools_TB = pass.run(q_TJD, weights_TJ, pool_keys);
//
// `pool_keys` holds {keys} of the pools at home in this rank's pieces of chunks 0 .. chunk, by
// place on the pool axis. The result: of each query the selected pools of its document, ascending,
// then -1. Queries that need not choose take all they see.
// Work buffers of all threads together stay under `work_bytes`.
// Contract: collective; uses tags [tag, tag + kTagsPerIndexPass). Thread contract: the rank's
// thread; tasks use its torch threads, and the result does not depend on their number.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "attention/row_store.h"
#include "comm/communicator.h"
#include "kernels/sparse_attention_shape.h"
#include "planner/attention_plan.h"
#include "sparse_attention/pool_axis.h"
#include "sparse_attention/pool_ranking.h"

namespace longspan {

inline constexpr int64_t kTagsPerIndexPass = 512;

struct IndexPassOptions {
  int64_t work_bytes = int64_t{256} << 20;
  int64_t tag = 0;
  std::string op;
};

class IndexPass {
 public:
  IndexPass(const IndexShape& shape, const AttentionPlan& plan, const PoolAxis& axis,
            const TokenLayout& layout, Communicator& comm, const IndexPassOptions& options);

  at::Tensor run(const at::Tensor& q_TJD, const at::Tensor& weights_TJ, const RowStore& pool_keys);

 private:
  std::vector<Round> pool_rounds() const;
  void add_lists(const std::vector<Range>& rows, const at::TensorOptions& options);
  void exchange_and_score(const at::Tensor& q_TJD, const at::Tensor& weights_TJ);
  void score(const AttentionTask& task, PoolRanking& ranking) const;
  void finish_back(const Range& line, const std::vector<at::Tensor>& lists,
                   PoolRanking& ranking) const;
  void forget(const Transfer& moved) const;

  const IndexShape shape_;
  const AttentionPlan& plan_;
  const PoolAxis& axis_;
  const TokenLayout& layout_;
  Communicator& comm_;
  const IndexPassOptions options_;
  RowStore queries_;  // {q, weights}, by line
  RowStore pools_;    // {keys}, by pool
  RowStore lists_;    // {scores, pools}, by line
};

}  // namespace longspan
