#include "planner/pass_refine.h"

#include <algorithm>

namespace longspan {
namespace {

constexpr int64_t kMaxCells = 24;
constexpr int kMaxRanks = 8;
// Moves must gain more than rounding.
constexpr double kLeastGain = 1e-9;

int64_t blocks_of(const Range& range) {
  return (range.end + kBlockTokens - 1) / kBlockTokens - range.begin / kBlockTokens;
}

// The parts of a range in the 128-blocks of its document.
std::vector<Range> by_blocks(const Range& range) {
  std::vector<Range> parts;
  for (int64_t begin = range.begin; begin < range.end;) {
    const int64_t end = std::min(range.end, (begin / kBlockTokens + 1) * kBlockTokens);
    parts.push_back({begin, end});
    begin = end;
  }
  return parts;
}

class Refiner {
 public:
  Refiner(const std::function<double(const TileDraft&)>& makespan_of, int* trials, TileDraft* draft)
      : makespan_of_(makespan_of), trials_(*trials), draft_(*draft) {
    for (const Tile& tile : draft_.tiles()) add_cells(tile);
    for (int rank = 0; rank < draft_.num_ranks(); ++rank) {
      if (draft_.is_server(rank)) servers_.push_back(rank);
    }
    best_s_ = judge();
  }

  void run() {
    while (trials_ > 0 && improve()) {
    }
    draft_.replace_all(cells_);
  }

 private:
  void add_cells(const Tile& tile) {
    for (const Range& queries : by_blocks(tile.queries)) {
      for (const Range& keys : by_blocks(tile.keys)) {
        const Range seen = visible_keys(keys, queries.end);
        if (seen.empty()) continue;
        cells_.push_back({tile.document, tile.home, tile.server, queries, seen, 0});
      }
    }
  }

  double judge() {
    --trials_;
    TileDraft trial = draft_;
    trial.replace_all(cells_);
    return makespan_of_(trial);
  }

  bool is_better() {
    const double makespan_s = judge();
    if (makespan_s >= best_s_ * (1 - kLeastGain)) return false;
    best_s_ = makespan_s;
    return true;
  }

  // One sweep over all moves; every gain is kept at once.
  bool improve() {
    bool improved = false;
    for (size_t idx = 0; idx < cells_.size(); ++idx) {
      improved = move({idx}) || improved;
      improved = move(mates(idx, &Tile::queries)) || improved;
      improved = move(mates(idx, &Tile::keys)) || improved;
      for (size_t other = 0; other < idx; ++other) improved = swap(idx, other) || improved;
    }
    return improved;
  }

  // Cells of the same document and server in the same row or column.
  std::vector<size_t> mates(size_t idx, Range Tile::*axis) const {
    std::vector<size_t> found;
    const Tile& cell = cells_[idx];
    for (size_t other = 0; other < cells_.size(); ++other) {
      const Tile& mate = cells_[other];
      if (mate.document == cell.document && mate.server == cell.server &&
          (mate.*axis).begin == (cell.*axis).begin) {
        found.push_back(other);
      }
    }
    return found;
  }

  bool move(const std::vector<size_t>& group) {
    const int before = cells_[group.front()].server;
    int best = before;
    for (const int server : servers_) {
      if (server == before || trials_ <= 0) continue;
      for (const size_t idx : group) cells_[idx].server = server;
      if (is_better()) best = server;
    }
    for (const size_t idx : group) cells_[idx].server = best;
    return best != before;
  }

  bool swap(size_t one, size_t other) {
    if (cells_[one].server == cells_[other].server || trials_ <= 0) return false;
    std::swap(cells_[one].server, cells_[other].server);
    if (is_better()) return true;
    std::swap(cells_[one].server, cells_[other].server);
    return false;
  }

  const std::function<double(const TileDraft&)>& makespan_of_;
  int& trials_;
  TileDraft& draft_;
  std::vector<Tile> cells_;
  std::vector<int> servers_;
  double best_s_ = 0;
};

}  // namespace

bool is_small(const TileDraft& draft) {
  if (draft.num_ranks() > kMaxRanks) return false;
  int64_t cells = 0;
  for (const Tile& tile : draft.tiles()) {
    cells += blocks_of(tile.queries) * blocks_of(tile.keys);
    if (cells > kMaxCells) return false;
  }
  return true;
}

void refine(const std::function<double(const TileDraft&)>& makespan_of, int* trials,
            TileDraft* draft) {
  Refiner(makespan_of, trials, draft).run();
}

}  // namespace longspan
