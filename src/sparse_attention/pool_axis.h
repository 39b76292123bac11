// The axis of pools: all whole pools of a micro-batch's documents, in the order of the line.
//
// Why: pool keys are rows as tokens' rows are, kept in stores, sent in ranges. A pool stands at its
// last token: it lives where that token lives, and belongs to the key range that holds it. So each
// line range has one range of pools, and a partition of the line is one of the pools:
//
//   PoolAxis axis(layout, 4);
//   axis.pools(layout.piece(1, 0));      // pools at home in a piece
//   axis.first_pool(document);           // pool p of a document is row first_pool + p of the axis
//
// Tokens at the end of a document that fill no pool have none. Immutable value; any thread.
#pragma once

#include "layout/token_layout.h"

namespace longspan {

class PoolAxis {
 public:
  PoolAxis(const TokenLayout& layout, int64_t pool_tokens);

  int64_t pool_tokens() const { return pool_tokens_; }
  int64_t first_pool(int32_t document) const { return first_pool_[static_cast<size_t>(document)]; }
  // The pools whose last token lies in the line range.
  Range pools(const Range& line) const;
  // The line rows of pools of one document.
  Range rows(int32_t document, const Range& pools_of_document) const;
  // Rows before a piece that belong to the pool that its first tokens finish.
  Range rows_before(const Range& piece) const;
  // Rows of a chunk, of the document that goes on after it, whose pool the chunk does not finish.
  Range unfinished_rows(int chunk) const;

 private:
  int64_t pools_before(int64_t line_position) const;

  const TokenLayout* layout_;
  int64_t pool_tokens_;
  std::vector<int64_t> first_pool_;  // documents + 1
};

}  // namespace longspan
