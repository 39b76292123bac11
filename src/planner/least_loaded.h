// The server that lacks most work for its speed, asked for again after every move.
//
// Why: the last rows of a balance go one by one to the least loaded server; with hundreds of
// servers looking at all of them each time would take longer than the rest. So servers stand in
// blocks, and only blocks in which something changed are looked through again.
//
//   LeastLoaded least_loaded(draft, levels);
//   const int receiver = least_loaded.rank();
//   least_loaded.note_change(giver);            // and of the receiver
//
// Follows a draft and its levels, which must outlive it. One thread.
#pragma once

#include <algorithm>
#include <vector>

#include "planner/balance_levels.h"

namespace longspan {

class LeastLoaded {
 public:
  LeastLoaded(const TileDraft& draft, const BalanceLevels& levels)
      : draft_(draft),
        levels_(levels),
        blocks_(static_cast<size_t>((draft.num_ranks() + kBlockRanks - 1) / kBlockRanks)) {}

  void note_change(int rank) { blocks_[static_cast<size_t>(rank / kBlockRanks)].is_known = false; }
  // Levels and loads may all be others.
  void forget() {
    for (Best& block : blocks_) block.is_known = false;
  }

  // The first of those that lack most; kUnplaced if no rank is a server.
  int rank() {
    Best best;
    for (size_t idx = 0; idx < blocks_.size(); ++idx) {
      if (!blocks_[idx].is_known) blocks_[idx] = best_of(static_cast<int>(idx));
      best.update(blocks_[idx].rank, blocks_[idx].relative);
    }
    return best.rank;
  }

 private:
  static constexpr int kBlockRanks = 16;

  struct Best {
    int rank = kUnplaced;
    double relative = 0;  // what it lacks, over its speed
    bool is_known = false;

    void update(int other, double other_relative) {
      if (other == kUnplaced || (rank != kUnplaced && other_relative <= relative)) return;
      rank = other;
      relative = other_relative;
    }
  };

  Best best_of(int block) const {
    Best best;
    const int end = std::min((block + 1) * kBlockRanks, draft_.num_ranks());
    for (int rank = block * kBlockRanks; rank < end; ++rank) {
      if (!draft_.is_server(rank)) continue;
      best.update(rank, levels_.deficit_s(rank) / draft_.costs().speed[static_cast<size_t>(rank)]);
    }
    best.is_known = true;
    return best;
  }

  const TileDraft& draft_;
  const BalanceLevels& levels_;
  std::vector<Best> blocks_;
};

}  // namespace longspan
