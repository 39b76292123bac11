// The pairs that a kernel works on for a task: whole tiles.
//
// Why: an attention kernel works on tiles of 128 queries x 128 keys and skips those that are
// wholly invisible; a document of 100 tokens costs it 16,384 pairs, not 5,050.
//
//   charged_pairs({0, 100}, {0, 100}) == 128 * 128
//
// Tiles count from the task's first query and first key. Constant time; pure.
#pragma once

#include <cstdint>

#include "base/range.h"
#include "layout/token_layout.h"

namespace longspan {

// Blocks that hold this many tokens.
inline int64_t blocks_of(int64_t tokens) {
  return tokens <= 0 ? 0 : (tokens + kBlockTokens - 1) / kBlockTokens;
}

// 1 + 2 + ... + rows, each term at most `limit`.
inline int64_t clipped_triangle(int64_t rows, int64_t limit) {
  if (rows <= 0) return 0;
  if (rows <= limit) return rows * (rows + 1) / 2;
  return limit * (limit + 1) / 2 + (rows - limit) * limit;
}

// Of the rectangle queries x keys (document positions) under the causal mask.
//
// Row i of the tiles, counted from 0, ends at query begin + 128 (i + 1), or at the last query, and
// reaches the key tiles up to there. For whole rows that is a number of tiles that grows by one.
inline int64_t charged_pairs(const Range& queries, const Range& keys) {
  if (queries.empty() || keys.empty()) return 0;
  const int64_t key_blocks = blocks_of(keys.size());
  // As of a whole document.
  if (queries == keys) return key_blocks * (key_blocks + 1) / 2 * kBlockTokens * kBlockTokens;
  const int64_t whole_rows = queries.size() / kBlockTokens;
  const int64_t delta = queries.begin - keys.begin;
  // ceil(delta / 128), for negative delta too; row i reaches before_first + i + 1 tiles.
  const int64_t before_first = delta >= 0 ? blocks_of(delta) : -(-delta / kBlockTokens);
  int64_t tiles = clipped_triangle(before_first + whole_rows, key_blocks) -
                  clipped_triangle(before_first, key_blocks);
  if (queries.size() % kBlockTokens != 0) {
    tiles += std::min(blocks_of(queries.end - keys.begin), key_blocks);
  }
  return tiles * kBlockTokens * kBlockTokens;
}

}  // namespace longspan
