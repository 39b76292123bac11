#include "planner/pass_tiles.h"

#include <algorithm>
#include <span>

#include "planner/block_search.h"

namespace longspan {
namespace {

constexpr size_t kMaxSharing = 16;

// Whether the server, beside this tile of its, holds keys that the tile needs; at home the keys of
// its own piece do not count.
bool holds_keys(const TokenLayout& layout, int chunk, const Tile& tile, const Range& keys) {
  for (int at = 0; at <= chunk; ++at) {
    if (at == chunk && tile.server == tile.home) continue;
    if (!intersect(layout.piece(at, tile.server), keys).empty()) return true;
  }
  return false;
}

bool follows(const Tile& tile, const Tile& next) {
  return tile.document == next.document && tile.home == next.home &&
         tile.queries.end == next.queries.begin;
}

// Tiles that may share keys, by document and queries: all but those at home with the first queries
// of their document, as nearly all are. A tile that nobody touched lacks those only if its document
// came from the rank before.
std::vector<size_t> candidates(const TileDraft& draft) {
  std::vector<size_t> found;
  const auto consider = [&](size_t idx) {
    const Tile& tile = draft.tile(idx);
    if (tile.server == kUnplaced || (tile.server == tile.home && tile.queries.begin == 0)) return;
    found.push_back(idx);
  };
  for (const size_t idx : draft.touched()) consider(idx);
  for (int rank = 0; rank < draft.num_ranks(); ++rank) {
    const IndexRange own = draft.first_tiles(rank);
    if (own.begin < own.end && !draft.is_touched(own.begin)) consider(own.begin);
  }
  std::sort(found.begin(), found.end(), [&](size_t one, size_t other) {
    const Tile& a = draft.tile(one);
    const Tile& b = draft.tile(other);
    if (a.document != b.document) return a.document < b.document;
    return a.queries.begin != b.queries.begin ? a.queries.begin < b.queries.begin : one < other;
  });
  return found;
}

// Finds tiles that are all that their server has of the document, keys included.
class LoneTiles {
 public:
  explicit LoneTiles(const TileDraft& draft)
      : draft_(draft), guests_(static_cast<size_t>(draft.num_ranks()), 0) {}

  // By document and queries: indices of tiles.
  std::vector<size_t> find() {
    const std::vector<size_t> tiles = candidates(draft_);
    for (auto begin = tiles.begin(); begin != tiles.end();) {
      const int32_t document = draft_.tile(*begin).document;
      const auto end = std::find_if(
          begin, tiles.end(), [&](size_t idx) { return draft_.tile(idx).document != document; });
      if (end - begin > 1) find({begin, end});
      begin = end;
    }
    return std::move(lone_);
  }

 private:
  // Among the candidates of one document.
  void find(std::span<const size_t> tiles) {
    count_guests(tiles, 1);
    for (const size_t idx : tiles) {
      if (is_alone(draft_.tile(idx))) lone_.push_back(idx);
    }
    count_guests(tiles, -1);
  }

  void count_guests(std::span<const size_t> tiles, int by) {
    for (const size_t idx : tiles) {
      const Tile& tile = draft_.tile(idx);
      if (tile.server != tile.home) guests_[static_cast<size_t>(tile.server)] += by;
    }
  }

  bool is_alone(const Tile& tile) const {
    if (tile.keys.begin != 0 || tile.keys.end != tile.queries.end) return false;
    const TokenLayout& layout = draft_.layout();
    const Range keys = layout.to_line(tile.document, tile.keys);
    const bool at_home = tile.server == tile.home;
    if (at_home && keys.begin >= layout.piece(draft_.chunk(), tile.home).begin) return false;
    if (guests_[static_cast<size_t>(tile.server)] != (at_home ? 0 : 1)) return false;
    return !holds_keys(layout, draft_.chunk(), tile, keys);
  }

  const TileDraft& draft_;
  std::vector<int> guests_;  // tiles of the document on each server away from home
  std::vector<size_t> lone_;
};

// Tiles with neighbouring queries.
using Run = std::span<const size_t>;

// What a partition of a run into groups costs.
class RunBytes {
 public:
  explicit RunBytes(const TileDraft& draft) : draft_(draft) {}

  // Of this run from now on.
  void set(Run run) {
    run_ = run;
    strangers_before_.assign(run.size() + 1, 0);
    for (size_t at = 0; at < run.size(); ++at) {
      const Tile& tile = draft_.tile(run[at]);
      strangers_before_[at + 1] = strangers_before_[at] + (tile.server == tile.home ? 0 : 1);
    }
    const Tile& first = draft_.tile(run.front());
    const TokenLayout& layout = draft_.layout();
    piece_begin_ =
        layout.piece(draft_.chunk(), first.home).begin - layout.document(first.document).begin;
  }

  // Of the tiles [begin, end), sharing keys if they are several. A server at home has the queries,
  // and the keys of its piece.
  double of(size_t begin, size_t end) const {
    const RowBytes& bytes = draft_.pass_costs().bytes;
    const Tile& last = draft_.tile(run_[end - 1]);
    const bool has_home = strangers(begin, end) < static_cast<int64_t>(end - begin);
    const int64_t keys = has_home ? std::min(last.keys.end, piece_begin_) : last.keys.end;
    const double key_bytes = bytes.key_out + bytes.key_back_partial;
    return of_queries(begin, end) + static_cast<double>(keys) * key_bytes;
  }

  // The part that only grows with the group.
  double of_queries(size_t begin, size_t end) const {
    const RowBytes& bytes = draft_.pass_costs().bytes;
    const int64_t queries =
        draft_.tile(run_[end - 1]).queries.end - draft_.tile(run_[begin]).queries.begin;
    const double query_back = end - begin > 1 ? bytes.query_back_partial : bytes.query_back;
    return static_cast<double>(strangers(begin, end)) * static_cast<double>(queries) *
           (bytes.query_out + query_back);
  }

 private:
  int64_t strangers(size_t begin, size_t end) const {
    return strangers_before_[end] - strangers_before_[begin];
  }

  const TileDraft& draft_;
  Run run_;
  std::vector<int64_t> strangers_before_;  // servers away from home
  int64_t piece_begin_ = 0;                // of the run's home, document position
};

// Finds the partition of a run into groups with the fewest bytes.
class RunPartition {
 public:
  explicit RunPartition(const TileDraft& draft) : bytes_(draft) {}

  // The begin of each group; valid until the next call.
  std::span<const size_t> best(Run run) {
    bytes_.set(run);
    best_bytes_.assign(run.size() + 1, 0);
    last_begin_.assign(run.size() + 1, 0);
    for (size_t end = 1; end <= run.size(); ++end) add_group_before(end);
    begins_.clear();
    for (size_t end = run.size(); end > 0; end = last_begin_[end]) {
      begins_.push_back(last_begin_[end]);
    }
    std::reverse(begins_.begin(), begins_.end());
    return begins_;
  }

 private:
  void add_group_before(size_t end) {
    for (size_t begin = end; begin-- > 0 && end - begin <= kMaxSharing;) {
      if (begin + 1 < end && bytes_.of_queries(begin, end) >= best_bytes_[end]) break;
      const double sum = best_bytes_[begin] + bytes_.of(begin, end);
      if (begin + 1 == end || sum < best_bytes_[end]) {
        best_bytes_[end] = sum;
        last_begin_[end] = begin;
      }
    }
  }

  RunBytes bytes_;
  // Of the tiles before each end: their fewest bytes, and where their last group begins.
  std::vector<double> best_bytes_;
  std::vector<size_t> last_begin_;
  std::vector<size_t> begins_;
};

// The key border after `begin` at which queries x [begin, border) cost the target as nearly as
// 128-blocks allow; `all_s` is what all keys cost.
int64_t key_border(const TileDraft& draft, const Range& queries, int64_t begin, double target_s,
                   double all_s) {
  const int64_t low = begin / kBlockTokens + 1;
  const int64_t high = std::max(low, (queries.end - 1) / kBlockTokens);
  const double share = std::min(1.0, target_s / all_s);
  const int64_t guess = begin + static_cast<int64_t>(share * static_cast<double>(queries.end));
  const int64_t block = first_block(low, high, guess / kBlockTokens, [&](int64_t probe) {
    return draft.cost_s(queries, {begin, probe * kBlockTokens}) >= target_s;
  });
  return std::min(block * kBlockTokens, queries.end);
}

class KeySharer {
 public:
  explicit KeySharer(TileDraft* draft) : draft_(*draft), partition_(*draft) {}

  // Returns whether any tiles of the run changed.
  bool share_run(Run run) {
    bool changed = false;
    const std::span<const size_t> begins = partition_.best(run);
    for (size_t group = 0; group < begins.size(); ++group) {
      const size_t end = group + 1 < begins.size() ? begins[group + 1] : run.size();
      const auto servers = static_cast<int64_t>(end - begins[group]);
      const int64_t blocks = draft_.tile(run[end - 1]).keys.end / kBlockTokens;
      if (servers == 1 || blocks < 2 * servers) continue;
      share(run.subspan(begins[group], end - begins[group]));
      changed = true;
    }
    return changed;
  }

 private:
  // All servers of the group take all its queries, and each a range of the keys that costs what it
  // had before; a server at home the last range, which holds its own keys.
  void share(Run tiles) {
    const Range queries{draft_.tile(tiles.front()).queries.begin,
                        draft_.tile(tiles.back()).queries.end};
    put_homes_last(tiles);
    double old_s = 0;
    for (const size_t idx : group_) old_s += draft_.tile(idx).cost_s;
    const double all_s = draft_.cost_s(queries, {0, queries.end});
    int64_t key_begin = 0;
    for (size_t at = 0; at < group_.size(); ++at) {
      const double target_s = draft_.tile(group_[at]).cost_s * all_s / old_s;
      const auto after = static_cast<int64_t>(group_.size() - at) - 1;
      // Every server after this one gets a block of keys at least.
      const int64_t last_end = (queries.end / kBlockTokens - after) * kBlockTokens;
      const int64_t key_end =
          after == 0 ? queries.end
                     : std::min(last_end, key_border(draft_, queries, key_begin, target_s, all_s));
      draft_.reshape(group_[at], queries, {key_begin, key_end});
      key_begin = key_end;
    }
  }

  void put_homes_last(Run tiles) {
    const auto is_at_home = [&](size_t idx) {
      return draft_.tile(idx).server == draft_.tile(idx).home;
    };
    group_.clear();
    for (const bool at_home : {false, true}) {
      for (const size_t idx : tiles) {
        if (is_at_home(idx) == at_home) group_.push_back(idx);
      }
    }
  }

  TileDraft& draft_;
  RunPartition partition_;
  std::vector<size_t> group_;
};

}  // namespace

bool share_keys(TileDraft* draft) {
  const std::vector<size_t> lone = LoneTiles(*draft).find();
  KeySharer sharer(draft);
  bool changed = false;
  for (size_t begin = 0; begin < lone.size();) {
    size_t end = begin + 1;
    while (end < lone.size() && follows(draft->tile(lone[end - 1]), draft->tile(lone[end]))) ++end;
    if (end - begin > 1) changed = sharer.share_run({lone.data() + begin, end - begin}) || changed;
    begin = end;
  }
  return changed;
}

}  // namespace longspan
