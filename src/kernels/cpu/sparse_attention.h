// Attention of each query over its selected pools and its tail, on latents (absorbed form).
//
//   s = scale * q . c ;  a = softmax(s) over the query's keys ;  o = sum a c         per head
//
// Why in absorbed form: one latent row of a token is key and value of all heads, so a query reads
// R numbers for each key, however many heads there are. Latents are read where they lie.
//
//   SparseAttentionWork<float> work(shape, pools_per_query);           // one for each thread
//   work.forward(queries, {0, rows}, latents, o, lse);
//
// Backward goes over a block of queries twice. First by query: d_q, and the weight of each (key,
// head), which are kept for the block; then by keys: each latent's gradient is a sum over the
// queries that chose it, in their order. So bits do not depend on how many threads share the work,
// nor on the size of the block.
//
//   work.query_gradient(queries, given, row, latents, weights, d_q);   // rows of a block, any
//   order work.latent_gradient(queries, d_o, block, weights, positions, d_latents);     // disjoint
//
// Selected pools of a query: ascending, then -1. Thread contract: a work object belongs to one
// thread; different rows, and disjoint key positions, may be computed at the same time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/range.h"
#include "kernels/sparse_attention_shape.h"

namespace longspan {

// Latents of these positions of the document lie from `rows` on, one after the other.
template <typename Real>
struct LatentRows {
  Range positions;
  Real* rows;
};

// Queries of one document at consecutive positions.
template <typename Real>
struct SparseQueries {
  const Real* q;         // [count, H, R]
  const int32_t* pools;  // [count, pools_per_query]
  int64_t first_position;
};

// What backward knows of the forward, and the gradient of its output.
template <typename Real>
struct SparseGradientInputs {
  const Real* o;
  const Real* lse;
  const Real* d_o;
};

// The positions that a query sees: of its selected pools, then of its tail; ascending. Returns
// their number, at most shape.max_keys(num_pools).
int64_t selected_positions(int64_t pool_tokens, int64_t position, std::span<const int32_t> pools,
                           int32_t* positions);

// Of the queries of a block, for each key and head: the softmax's weight and the gradient of the
// score. Query `row` of the block owns `row_values()` numbers of each.
template <typename Real>
struct KeyWeights {
  Real* weights;
  Real* d_scores;
};

template <typename Real>
class SparseAttentionWork {
 public:
  SparseAttentionWork(const SparseAttentionShape& shape, int64_t pools_per_query);

  // Numbers of one query in each part of KeyWeights.
  int64_t row_values() const;

  // `latents` sorted, disjoint, holding every position that the rows see (InternalError if not).
  void forward(const SparseQueries<Real>& queries, Range rows,
               std::span<const LatentRows<const Real>> latents, Real* o, Real* lse);

  void query_gradient(const SparseQueries<Real>& queries, const SparseGradientInputs<Real>& given,
                      int64_t row, std::span<const LatentRows<const Real>> latents,
                      const KeyWeights<Real>& of_row, Real* d_q);

  // Adds what the queries `block` give to the gradients of latents at `positions`.
  void latent_gradient(const SparseQueries<Real>& queries, const Real* d_o, Range block,
                       const KeyWeights<Real>& of_block, Range positions,
                       std::span<const LatentRows<Real>> d_latents);

 private:
  int64_t select(const SparseQueries<Real>& queries, int64_t row);
  void transpose(const Real* heads, std::vector<Real>* transposed) const;
  void pad(const Real* heads, std::vector<Real>* padded) const;
  void gather(std::span<const LatentRows<const Real>> latents, Range keys);
  // weights[key, lane] = c . q of the gathered keys.
  void products(Range keys, const std::vector<Real>& transposed, Real* values) const;
  void softmax(int64_t num_keys, Real* lse);
  void weighted_sum(Range keys, const Real* values, bool first, Real* sums) const;

  const SparseAttentionShape shape_;
  const int64_t pools_per_query_;
  const int64_t max_keys_;
  const int64_t lanes_;         // heads, filled up to whole vectors
  const int64_t padded_width_;  // R, filled up to whole panels
  std::vector<int32_t> positions_;
  std::vector<Real> q_transposed_;    // [R, lanes]
  std::vector<Real> d_o_transposed_;  // [R, lanes]
  std::vector<Real> q_padded_;        // [H, padded R]
  std::vector<Real> d_o_padded_;      // [H, padded R]
  std::vector<Real> gathered_;        // [key block, R]; the gradient of as many keys, padded R
  std::vector<Real> scores_;          // [max keys, lanes]
  std::vector<Real> of_heads_[2];     // [lanes]
};

}  // namespace longspan
