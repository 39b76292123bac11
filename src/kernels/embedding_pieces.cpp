#include "kernels/embedding_pieces.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace longspan {

EmbeddingPieces embedding_pieces(std::span<const int32_t> tokens) {
  LONGSPAN_CHECK(tokens.size() <= std::numeric_limits<int32_t>::max(), tokens.size(), " rows");
  const auto rows = static_cast<int32_t>(tokens.size());
  const auto token_of = [&](int32_t row) { return tokens[static_cast<size_t>(row)]; };
  EmbeddingPieces pieces;
  pieces.order.resize(tokens.size());
  std::iota(pieces.order.begin(), pieces.order.end(), 0);
  std::stable_sort(pieces.order.begin(), pieces.order.end(),
                   [&](int32_t a, int32_t b) { return token_of(a) < token_of(b); });
  const auto token_at = [&](int32_t at) { return token_of(pieces.order[static_cast<size_t>(at)]); };
  for (int32_t begin = 0; begin < rows;) {
    int32_t end = begin + 1;
    while (end < rows && token_at(end) == token_at(begin)) ++end;
    const bool single = end - begin <= kEmbeddingPieceRows;
    const int32_t first_partial = pieces.partials;
    for (int32_t at = begin; at < end; at += kEmbeddingPieceRows) {
      pieces.list.push_back({token_at(begin), at, std::min(end, at + kEmbeddingPieceRows),
                             single ? -1 : pieces.partials++});
    }
    if (!single) pieces.sums.push_back({token_at(begin), first_partial, pieces.partials});
    begin = end;
  }
  return pieces;
}

}  // namespace longspan
