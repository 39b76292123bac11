// Which rows of which tokens travel to which rank of an expert group, and in which chunk.
//
// Why chunks: an expert that everybody chooses would make its rank receive the whole group's tokens
// at once. The rows between two ranks are dealt over chunks like cards, so each chunk holds an
// equal part of every pair's traffic, however the choices are skewed; there are as many chunks as
// the busiest rank needs to keep within `max_pairs_per_chunk`. All ranks compute the same number
// from the same counts, so they make the same number of exchanges.
//
//   const ExpertDispatch dispatch({.experts = 288, .top_k = 8, .ranks = 8}, ids_TK, group, op);
//   for (int64_t chunk = 0; chunk < dispatch.chunks(); ++chunk)
//     dispatch.outgoing(chunk, rank).tokens ...        // rows to send
//     dispatch.incoming(chunk, rank)                   // rows to expect, by their number of pairs
//
// A *pair* is a token and one of its experts, a *row* a token and all its experts on one rank: a
// token goes to a rank once at most. Rank r owns experts [r n, (r + 1) n), n = experts / ranks.
// Rows between two ranks stand in the order of falling number of pairs, then of tokens; so the
// counts of rows by number of pairs tell the receiver all sizes.
// Contract: construction is collective over the group, with one all-gather of ranks x min(K, n)
// counts, the one exchange of sizes. Immutable afterwards. The ids of
// a token are distinct.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace longspan {

struct ExpertGroupShape {
  int64_t experts = 0;
  int64_t top_k = 0;
  int64_t ranks = 1;
  // Most pairs that a rank sends, and that a rank receives, in one chunk.
  int64_t max_pairs_per_chunk = 16384;

  int64_t experts_per_rank() const { return experts / ranks; }
  // Most pairs of one row.
  int64_t pairs_per_row_max() const { return std::min(top_k, experts_per_rank()); }
};

// UserError where the experts cannot be spread so.
void check_expert_group(const ExpertGroupShape& shape);

struct OutgoingRows {
  std::vector<int64_t> tokens;  // of each row
  std::vector<int64_t> places;  // of each pair, row by row: token * top_k + its place among the ids
};

class ExpertDispatch {
 public:
  // `ids_TK`: int32, on the CPU: who runs on a GPU reads them back, once for all passes. `group` is
  // null for one rank.
  ExpertDispatch(const ExpertGroupShape& shape, const at::Tensor& ids_TK, Communicator* group,
                 const std::string& op);

  const ExpertGroupShape& shape() const { return shape_; }
  const at::Tensor& ids_TK() const { return ids_TK_; }
  int64_t tokens() const { return ids_TK_.size(0); }
  int64_t chunks() const { return chunks_; }
  // Most pairs that any rank of the group sends or receives in any chunk.
  int64_t pairs_per_chunk() const { return pairs_per_chunk_; }

  const OutgoingRows& outgoing(int64_t chunk, int64_t to_rank) const;
  // Rows from that rank with 1, 2, ... pairs.
  std::vector<int64_t> incoming(int64_t chunk, int64_t from_rank) const;

 private:
  using Counts = std::vector<int64_t>;  // [m - 1]: rows with m pairs

  Counts counts_of(int64_t from_rank, int64_t to_rank) const;
  int64_t busiest_pairs(int64_t chunks) const;
  std::vector<std::vector<int64_t>> order_rows();
  void gather_counts(Communicator* group, const std::string& op);
  void choose_chunks();
  void reserve(int64_t to_rank, int64_t rows);
  void deal(const std::vector<std::vector<int64_t>>& order);

  ExpertGroupShape shape_;
  at::Tensor ids_TK_;
  int64_t rank_ = 0;
  int64_t chunks_ = 1;
  int64_t pairs_per_chunk_ = 0;
  std::vector<int64_t> counts_;         // [from, to, m - 1]
  std::vector<OutgoingRows> outgoing_;  // [chunk, to]
};

}  // namespace longspan
