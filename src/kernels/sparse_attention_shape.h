// Shapes of sparse attention with a pooled index, on raw rows.
//
// A *pool* is `pool_tokens` neighbouring tokens of one document, counted from its start; it has one
// index key. A query ranks the pools whose last token it sees (*visible* pools), takes the best
// `top_pools` of them, and attends to all their tokens and to the *tail*, the tokens of its own
// unfinished pool. One latent row of a token serves as key and value of all heads.
//
//   IndexShape index{.heads = 32, .width = 128, .pool_tokens = 4, .top_pools = 512, .scale = s};
//   index.visible_pools(11);             // positions 0..11: pools 0, 1, 2
//
// Legend: T queries, J index heads, D index width, P pools, B selected pools, H heads, R latent
// width. Index queries [T, J, D], head weights [T, J], pool keys [P, D]; queries and outputs
// [T, H, R], latents [keys, R], LSE [T, H] (natural logarithm). Positions count from the document's
// start. Values.
#pragma once

#include <algorithm>
#include <cstdint>

namespace longspan {

struct IndexShape {
  int64_t heads = 1;
  int64_t width = 1;
  int64_t pool_tokens = 4;
  int64_t top_pools = 1;
  double scale = 1;  // of the products of index queries and pool keys

  int64_t visible_pools(int64_t position) const { return (position + 1) / pool_tokens; }
  // Whether the query has more pools to see than it may choose.
  bool must_choose(int64_t position) const { return visible_pools(position) > top_pools; }
};

struct SparseAttentionShape {
  int64_t heads = 1;
  int64_t width = 1;  // of a latent
  int64_t pool_tokens = 4;
  double scale = 1;

  int64_t row_size() const { return heads * width; }
  // Keys that a query with so many selected pools sees at most.
  int64_t max_keys(int64_t pools) const { return pools * pool_tokens + pool_tokens - 1; }
};

}  // namespace longspan
