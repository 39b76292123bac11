#include "planner/pass_tiles.h"

#include <algorithm>

namespace longspan {
namespace {

constexpr size_t kMaxSharing = 16;

// Which servers work on documents away from home.
class DocumentServers {
 public:
  explicit DocumentServers(const TileDraft& draft) : draft_(draft) {
    for (const Tile& tile : draft.tiles()) {
      if (tile.server != tile.home) pairs_.emplace_back(tile.document, tile.server);
    }
    std::sort(pairs_.begin(), pairs_.end());
  }

  // Whether the tile is all that its server has of the document, keys included; at home the keys of
  // its own piece do not count.
  bool is_alone(const Tile& tile) const {
    if (tile.server == kUnplaced) return false;
    const TokenLayout& layout = draft_.layout();
    const Range keys = layout.to_line(tile.document, tile.keys);
    const bool at_home = tile.server == tile.home;
    // Most documents begin and end in their piece.
    if (at_home && keys.begin >= layout.piece(draft_.chunk(), tile.home).begin) return false;
    const auto found =
        std::equal_range(pairs_.begin(), pairs_.end(), std::pair(tile.document, tile.server));
    if (found.second - found.first != (at_home ? 0 : 1)) return false;
    for (int chunk = 0; chunk <= draft_.chunk(); ++chunk) {
      if (at_home && chunk == draft_.chunk()) continue;
      if (!intersect(layout.piece(chunk, tile.server), keys).empty()) return false;
    }
    return true;
  }

 private:
  const TileDraft& draft_;
  std::vector<std::pair<int32_t, int>> pairs_;
};

bool follows(const Tile& tile, const Tile& next) {
  return tile.document == next.document && tile.home == next.home &&
         tile.queries.end == next.queries.begin;
}

// Runs of tiles with neighbouring queries, each alone on its server: indices of tiles.
std::vector<std::vector<size_t>> lone_runs(const TileDraft& draft) {
  const DocumentServers servers(draft);
  std::vector<size_t> lone;
  for (size_t idx = 0; idx < draft.tiles().size(); ++idx) {
    const Tile& tile = draft.tile(idx);
    const bool prefix = tile.keys.begin == 0 && tile.keys.end == tile.queries.end;
    if (prefix && servers.is_alone(tile)) lone.push_back(idx);
  }
  std::sort(lone.begin(), lone.end(), [&](size_t one, size_t other) {
    const Tile& a = draft.tile(one);
    const Tile& b = draft.tile(other);
    return a.document != b.document ? a.document < b.document : a.queries.begin < b.queries.begin;
  });
  std::vector<std::vector<size_t>> runs;
  for (size_t at = 0; at < lone.size(); ++at) {
    const bool goes_on = at > 0 && follows(draft.tile(lone[at - 1]), draft.tile(lone[at]));
    if (!goes_on) runs.emplace_back();
    runs.back().push_back(lone[at]);
  }
  return runs;
}

// Bytes of the tiles [begin, end) of a run, sharing keys if they are several. A server at home has
// the queries, and the keys of its piece.
double group_bytes(const TileDraft& draft, const std::vector<size_t>& run, size_t begin,
                   size_t end) {
  const RowBytes& bytes = draft.pass_costs().bytes;
  const Tile& first = draft.tile(run[begin]);
  const Tile& last = draft.tile(run[end - 1]);
  int64_t strangers = 0;
  for (size_t at = begin; at < end; ++at) {
    const Tile& tile = draft.tile(run[at]);
    strangers += tile.server == tile.home ? 0 : 1;
  }
  const bool has_home = strangers < static_cast<int64_t>(end - begin);
  const TokenLayout& layout = draft.layout();
  const int64_t piece_begin =
      layout.piece(draft.chunk(), first.home).begin - layout.document(first.document).begin;
  const int64_t keys = has_home ? std::min(last.keys.end, piece_begin) : last.keys.end;
  const auto queries = static_cast<double>(last.queries.end - first.queries.begin);
  const double key_bytes = bytes.key_out + bytes.key_back_partial;
  const double query_back = end - begin > 1 ? bytes.query_back_partial : bytes.query_back;
  return static_cast<double>(strangers) * queries * (bytes.query_out + query_back) +
         static_cast<double>(keys) * key_bytes;
}

// The partition of a run into groups with the fewest bytes: the begin of each group.
std::vector<size_t> best_partition(const TileDraft& draft, const std::vector<size_t>& run) {
  std::vector<double> best(run.size() + 1, 0);
  std::vector<size_t> last_begin(run.size() + 1, 0);
  for (size_t end = 1; end <= run.size(); ++end) {
    for (size_t begin = end; begin-- > 0 && end - begin <= kMaxSharing;) {
      const double bytes = best[begin] + group_bytes(draft, run, begin, end);
      if (begin + 1 == end || bytes < best[end]) {
        best[end] = bytes;
        last_begin[end] = begin;
      }
    }
  }
  std::vector<size_t> begins;
  for (size_t end = run.size(); end > 0; end = last_begin[end]) begins.push_back(last_begin[end]);
  std::reverse(begins.begin(), begins.end());
  return begins;
}

// The key border after `begin` at which queries x [begin, border) cost the target as nearly as
// 128-blocks allow.
int64_t key_border(const TileDraft& draft, const Range& queries, int64_t begin, double target_s) {
  int64_t low = begin / kBlockTokens + 1;
  int64_t high = std::max(low, (queries.end - 1) / kBlockTokens);
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    const double cost = draft.cost_s(queries, {begin, middle * kBlockTokens});
    if (cost < target_s) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return std::min(low * kBlockTokens, queries.end);
}

// All servers of the group take all its queries, and each a range of the keys that costs what it
// had before; a server at home the last range, which holds its own keys.
void share(const std::vector<size_t>& run, size_t begin, size_t end, TileDraft* draft) {
  std::vector<size_t> group(run.begin() + static_cast<std::ptrdiff_t>(begin),
                            run.begin() + static_cast<std::ptrdiff_t>(end));
  const Range queries{draft->tile(group.front()).queries.begin,
                      draft->tile(group.back()).queries.end};
  std::stable_partition(group.begin(), group.end(), [&](size_t idx) {
    return draft->tile(idx).server != draft->tile(idx).home;
  });
  double old_s = 0;
  for (const size_t idx : group) old_s += draft->tile(idx).cost_s;
  const double scale = draft->cost_s(queries, {0, queries.end}) / old_s;
  int64_t key_begin = 0;
  for (size_t at = 0; at < group.size(); ++at) {
    const double target_s = draft->tile(group[at]).cost_s * scale;
    const auto after = static_cast<int64_t>(group.size() - at) - 1;
    // Every server after this one gets a block of keys at least.
    const int64_t last_end = (queries.end / kBlockTokens - after) * kBlockTokens;
    const int64_t key_end =
        after == 0 ? queries.end
                   : std::min(last_end, key_border(*draft, queries, key_begin, target_s));
    draft->reshape(group[at], queries, {key_begin, key_end});
    key_begin = key_end;
  }
}

}  // namespace

bool share_keys(TileDraft* draft) {
  bool changed = false;
  for (const std::vector<size_t>& run : lone_runs(*draft)) {
    const std::vector<size_t> begins = best_partition(*draft, run);
    for (size_t group = 0; group < begins.size(); ++group) {
      const size_t end = group + 1 < begins.size() ? begins[group + 1] : run.size();
      const auto servers = static_cast<int64_t>(end - begins[group]);
      const int64_t blocks = draft->tile(run[end - 1]).keys.end / kBlockTokens;
      if (servers == 1 || blocks < 2 * servers) continue;
      share(run, begins[group], end, draft);
      changed = true;
    }
  }
  return changed;
}

}  // namespace longspan
