// Index scores of queries against pools, and the best pools of each query, in bounded memory.
//
//   score(query, pool) = sum over index heads of weight * relu(scale * q . key)
//
// Why one kernel: the scores of a document grow with the square of its length; only a list of
// `top_pools` for each query leaves this kernel, and its work buffer has a size that is chosen
// before, at any length. Queries go in blocks, pools in blocks, and what beats a list enters it.
//
//   IndexScorer<float> scorer(shape, /*bound_bytes=*/64 << 20);
//   clear_top_pools(shape, queries, scores, pools);
//   scorer.score({q, weights, first_position, queries, scores, pools}, {keys, first_pool, count});
//
// Order: higher score first, then the lower pool; -0 counts as +0, not-a-number as -infinity. A
// list is in that order and ends with pool -1 where it is not full. A score has the same bits
// wherever its query and its pool stand in blocks, so equal rows tie on every layout. Queries that
// need not choose (shape.must_choose) are passed over and their lists left empty.
// Lists of a query against different pools merge into the list against all of them: exact, in any
// order. Thread contract: a scorer and its buffer belong to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/sparse_attention_shape.h"

namespace longspan {

struct IndexBlocks {
  int64_t queries = 0;
  int64_t pools = 0;
  int64_t bytes = 0;  // of the work buffer
};

// The largest useful blocks whose work buffer fits; UserError if none does.
IndexBlocks index_blocks(const IndexShape& shape, int64_t element_bytes, int64_t bound_bytes);

// Queries of one document at consecutive positions, and their lists [count, top_pools].
template <typename Real>
struct IndexQueries {
  const Real* q;
  const Real* head_weights;
  int64_t first_position;
  int64_t count;
  Real* scores;
  int32_t* pools;
};

// Pools of the same document, consecutive from `first_pool` on.
template <typename Real>
struct IndexPools {
  const Real* keys;
  int64_t first_pool;
  int64_t count;
};

// Makes lists empty.
template <typename Real>
void clear_top_pools(const IndexShape& shape, int64_t queries, Real* scores, int32_t* pools);

// Merges the lists `from` into the lists `into`, query by query.
template <typename Real>
void merge_top_pools(const IndexShape& shape, int64_t queries, const Real* from_scores,
                     const int32_t* from_pools, Real* into_scores, int32_t* into_pools);

template <typename Real>
class IndexScorer {
 public:
  IndexScorer(const IndexShape& shape, int64_t bound_bytes);

  int64_t work_bytes() const { return static_cast<int64_t>(buffer_.size()); }

  // Merges the pools that each query sees into its list.
  void score(const IndexQueries<Real>& queries, const IndexPools<Real>& pools);

 private:
  struct Candidate {
    Real score;
    int32_t pool;
  };

  void transpose(const Real* keys, int64_t count);
  void score_block(const IndexQueries<Real>& queries, int64_t begin, int64_t end,
                   const IndexPools<Real>& pools);
  const Real* query_scores(const Real* dots, const Real* head_weights, int64_t columns);
  void enter(int64_t first_pool, int64_t count, const Real* scores, Real* list_scores,
             int32_t* list_pools);

  const IndexShape shape_;
  const IndexBlocks blocks_;
  std::vector<std::byte> buffer_;
  // Parts of the buffer.
  Real* transposed_;       // [width, block pools]
  Real* queries_;          // [block queries * heads, width]
  Real* dots_;             // [block queries * heads, block pools]
  Real* scores_;           // [block pools]
  Candidate* candidates_;  // [block pools]
  Candidate* merged_;      // [top_pools]
};

}  // namespace longspan
