// Random ragged layouts for the planner's tests.
//
// Documents from one token to several blocks, 1 to 5 chunks, 1 to 8 ranks, some of them without
// tokens; borders snapped to blocks, or anywhere, so that pieces may be tiny or empty.
//
//   RandomStream random(seed, "my test");
//   const TokenLayout layout = random_layout(random, {.max_document_tokens = 700});
#pragma once

#include "base/random.h"
#include "layout/token_layout.h"

namespace longspan {

struct RandomLayoutOptions {
  int64_t max_documents = 10;
  int64_t max_document_tokens = 1500;
  int64_t max_ranks = 8;
  // Relative token shares are drawn from {0, 1}: ranks without tokens occur.
  bool allow_empty_ranks = true;
  bool allow_any_border = true;
};

inline TokenLayout random_layout(RandomStream& random, const RandomLayoutOptions& options = {}) {
  std::vector<int64_t> lengths(static_cast<size_t>(random.between(1, options.max_documents)));
  int64_t tokens = 0;
  for (int64_t& length : lengths) {
    length = random.between(1, random.below(3) == 0 ? 5 : options.max_document_tokens);
    tokens += length;
  }
  const auto chunks = static_cast<int>(random.between(1, 5));
  const auto ranks = static_cast<size_t>(random.between(1, options.max_ranks));
  if (options.allow_any_border && random.below(3) == 0) {
    std::vector<int64_t> borders = {0, tokens};
    for (size_t piece = 1; piece < static_cast<size_t>(chunks) * ranks; ++piece) {
      borders.push_back(random.between(0, tokens));
    }
    std::sort(borders.begin(), borders.end());
    return TokenLayout::from_borders(lengths, chunks, static_cast<int>(ranks), borders);
  }
  LayoutOptions layout{.chunks = chunks, .shares = std::vector<double>(ranks, 1.0)};
  if (options.allow_empty_ranks) {
    const auto with_tokens = random.below(ranks);
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (rank != with_tokens && random.below(4) == 0) layout.shares[rank] = 0;
    }
  }
  return TokenLayout::make(lengths, layout);
}

}  // namespace longspan
