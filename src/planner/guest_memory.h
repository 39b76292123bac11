// What rows of other homes take of each server's memory, while work is dealt out.
//
//   GuestMemory memory(draft);
//   if (!memory.is_full(rank) && memory.takes(rank, tile, queries)) draft.give_queries(...);
//
// All tiles are taken for strangers to each other: too much rather than too little. Without a cap
// nothing is counted. One thread.
#pragma once

#include <vector>

#include "planner/tile_draft.h"

namespace longspan {

class GuestMemory {
 public:
  explicit GuestMemory(const TileDraft& draft) : draft_(draft) { recount(); }

  // As the draft is now; nobody is full.
  void recount() {
    is_full_.assign(static_cast<size_t>(draft_.num_ranks()), 0);
    bytes_.assign(static_cast<size_t>(draft_.num_ranks()), 0.0);
    if (draft_.costs().memory_cap_bytes <= 0) return;
    for (const Tile& tile : draft_.tiles()) {
      if (tile.server == kUnplaced) continue;
      // At home only the keys of earlier homes are strangers.
      const Range piece = draft_.layout().piece(draft_.chunk(), tile.home);
      const int64_t begin = draft_.layout().document(tile.document).begin;
      const bool at_home = tile.server == tile.home;
      const Range strangers{tile.keys.begin, std::min(tile.keys.end, piece.begin - begin)};
      bytes_[static_cast<size_t>(tile.server)] +=
          at_home ? row_bytes({}, strangers.empty() ? Range{} : strangers)
                  : row_bytes(tile.queries, tile.keys);
    }
  }

  bool is_full(int rank) const { return is_full_[static_cast<size_t>(rank)] != 0; }

  // Whether the server has room for a stretch of the tile, which then counts; if not it is full.
  bool takes(int rank, const Tile& tile, const Range& queries) {
    const double cap = draft_.costs().memory_cap_bytes;
    if (cap <= 0 || rank == tile.home) return true;
    const auto idx = static_cast<size_t>(rank);
    const double more = row_bytes(queries, visible_keys(tile.keys, queries.end));
    const bool fits = bytes_[idx] + more <= cap;
    is_full_[idx] = fits ? 0 : 1;
    if (fits) bytes_[idx] += more;
    return fits;
  }

 private:
  double row_bytes(const Range& queries, const Range& keys) const {
    const PassCosts& costs = draft_.pass_costs();
    return static_cast<double>(queries.size()) * costs.query_row_memory_bytes +
           static_cast<double>(keys.size()) * costs.key_row_memory_bytes;
  }

  const TileDraft& draft_;
  std::vector<char> is_full_;
  std::vector<double> bytes_;  // of each server
};

}  // namespace longspan
