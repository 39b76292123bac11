// How the gradient of an embedding is summed without atomics: rows grouped by their token.
//
// Why: many rows may hold one token, and sums need a fixed order. Rows are sorted by token, in
// their order within one; a run of a frequent token is cut into pieces of kEmbeddingPieceRows, so
// that no thread adds a long run alone. The only piece of a token adds to the table itself; others
// leave a partial sum, and the partials of a token are added in order.
//
//   const EmbeddingPieces pieces = embedding_pieces(tokens);
//   pieces.order[pieces.list[i].begin ...]                  // the rows of piece i
//
// Pure function.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace longspan {

inline constexpr int32_t kEmbeddingPieceRows = 128;

struct EmbeddingPieces {
  struct Piece {
    int32_t token = 0;
    int32_t begin = 0;  // rows order[begin, end)
    int32_t end = 0;
    int32_t partial = -1;  // which partial sum it writes; -1: it adds to the table
  };
  struct Sum {
    int32_t token = 0;
    int32_t partial_begin = 0;
    int32_t partial_end = 0;
  };
  std::vector<int32_t> order;
  std::vector<Piece> list;
  std::vector<Sum> sums;
  int32_t partials = 0;
};

// Token ids are not negative; at most 2^31 - 1 rows.
EmbeddingPieces embedding_pieces(std::span<const int32_t> tokens);

}  // namespace longspan
