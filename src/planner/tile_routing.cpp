#include "planner/tile_routing.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "planner/held_rows.h"

namespace longspan {
namespace {

// Appends to a list that is normalized as long as ranges come in ascending order.
void append(const Range& range, std::vector<Range>* ranges) {
  if (!ranges->empty() && ranges->back().end >= range.begin) {
    LONGSPAN_CHECK(ranges->back().begin <= range.begin, "ranges ", ranges->back(), " and ", range,
                   " are out of order");
    ranges->back().end = std::max(ranges->back().end, range.end);
    return;
  }
  ranges->push_back(range);
}

// The tiles of each server by document, queries and keys.
TilesByServer order_tiles(const TileDraft& draft) {
  const std::vector<Tile>& tiles = draft.tiles();
  TilesByServer order = draft.tiles_by_server();
  LONGSPAN_CHECK(order.indices.size() == tiles.size(), order.indices.size(), " of ", tiles.size(),
                 " tiles are placed");
  const auto before = [&](size_t one, size_t other) {
    const Tile& a = tiles[one];
    const Tile& b = tiles[other];
    if (a.document != b.document) return a.document < b.document;
    if (a.queries.begin != b.queries.begin) return a.queries.begin < b.queries.begin;
    return a.keys.begin < b.keys.begin;
  };
  for (size_t rank = 0; rank + 1 < order.begin.size(); ++rank) {
    const std::span<size_t> indices = order.of(rank);
    if (!std::is_sorted(indices.begin(), indices.end(), before)) {
      std::sort(indices.begin(), indices.end(), before);
    }
  }
  return order;
}

class Router {
 public:
  explicit Router(const TileDraft& draft) : draft_(draft), layout_(draft.layout()) {
    plan_.direction = draft.direction();
    plan_.chunk = draft.chunk();
    plan_.servers.resize(static_cast<size_t>(draft.num_ranks()));
  }

  AttentionPlan run() {
    TilesByServer order = order_tiles(draft_);
    for (int rank = 0; rank < draft_.num_ranks(); ++rank) {
      const auto idx = static_cast<size_t>(rank);
      add_tasks(rank, order.of(idx));
      add_transfers(rank, plan_.servers[idx].query_rows, RowKind::kQuery);
      add_transfers(rank, plan_.servers[idx].key_rows, RowKind::kKeyValue);
    }
    finish_out();
    finish_back();
    return std::move(plan_);
  }

 private:
  // Tasks whose rows are all at home come first.
  void add_tasks(int rank, std::span<const size_t> tiles) {
    ServerPlan& server = plan_.servers[static_cast<size_t>(rank)];
    server.tasks.reserve(tiles.size());
    remote_.clear();
    bool last_is_local = false;
    bool last_is_remote = false;
    for (auto at = tiles.begin(); at != tiles.end();) {
      const int32_t document = draft_.tile(*at).document;
      const int64_t line = layout_.document(document).begin;
      document_keys_.clear();
      for (; at != tiles.end() && draft_.tile(*at).document == document; ++at) {
        const Tile& tile = draft_.tile(*at);
        append(shift(tile.queries, line), &server.query_rows);
        splits_keys_ |= tile.keys.begin != 0 || tile.keys.end != tile.queries.end;
        document_keys_.push_back(shift(tile.keys, line));
        const bool local = tile.home == rank && is_home(rank, document_keys_.back());
        std::vector<AttentionTask>& tasks = local ? server.tasks : remote_;
        const bool may_join = local ? last_is_local : last_is_remote;
        last_is_local = local;
        last_is_remote = !local;
        if (may_join && join_tile(tile, &tasks.back())) continue;
        tasks.push_back({tile.document, tile.queries, tile.keys});
      }
      add_keys(&server.key_rows);
    }
    const auto local_tasks = std::ssize(server.tasks);
    server.tasks.insert(server.tasks.end(), remote_.begin(), remote_.end());
    if (local_tasks > 0) server.groups.push_back({0, 0, local_tasks});
    if (!remote_.empty()) server.groups.push_back({1, local_tasks, std::ssize(server.tasks)});
  }

  void add_keys(std::vector<Range>* rows) {
    if (document_keys_.size() > 1) {
      std::sort(document_keys_.begin(), document_keys_.end(),
                [](const Range& a, const Range& b) { return a.begin < b.begin; });
    }
    for (const Range& keys : document_keys_) append(keys, rows);
  }

  bool is_home(int rank, const Range& line) const {
    const Range piece = layout_.piece(plan_.chunk, rank);
    if (piece.contains(line)) return true;
    if (plan_.chunk == 0) return false;
    for (int64_t at = line.begin; at < line.end;) {
      const Home home = layout_.home(at);
      if (home.rank != rank) return false;
      at = layout_.piece(home.chunk, home.rank).end;
    }
    return true;
  }

  // Rows of other homes arrive in the out leg, and their results leave in the back leg.
  void add_transfers(int rank, const std::vector<Range>& rows, RowKind kind) {
    const Range own = layout_.piece(plan_.chunk, rank);
    const bool returns = kind == RowKind::kQuery || plan_.direction == Direction::kBackward;
    for (const Range& range : rows) {
      for (int64_t at = range.begin; at < range.end;) {
        if (own.contains(at)) {
          at = own.end;
          continue;
        }
        const Home home = layout_.home(at);
        const Range part{at, std::min(range.end, layout_.piece(home.chunk, home.rank).end)};
        at = part.end;
        if (home.rank == rank) continue;
        out_.push_back({home.rank, rank, kind, part, false});
        if (returns) back_.push_back({rank, home.rank, kind, part, false});
      }
    }
  }

  // They come by rising destination, kind and line: what is left is a stable sort by source.
  void finish_out() {
    if (out_.empty()) return;
    std::vector<size_t> next(static_cast<size_t>(draft_.num_ranks()) + 1, 0);
    for (const Transfer& transfer : out_) ++next[static_cast<size_t>(transfer.source) + 1];
    for (size_t rank = 1; rank < next.size(); ++rank) next[rank] += next[rank - 1];
    std::vector<Transfer> sorted(out_.size());
    for (const Transfer& transfer : out_) {
      sorted[next[static_cast<size_t>(transfer.source)]++] = transfer;
    }
    plan_.out.push_back({std::move(sorted)});
  }

  // They come by rising source: what is left is to sort those of each source.
  void finish_back() {
    if (back_.empty()) return;
    for (size_t begin = 0; begin < back_.size();) {
      size_t end = begin;
      while (end < back_.size() && back_[end].source == back_[begin].source) ++end;
      std::stable_sort(
          back_.begin() + static_cast<std::ptrdiff_t>(begin),
          back_.begin() + static_cast<std::ptrdiff_t>(end),
          [](const Transfer& a, const Transfer& b) { return a.destination < b.destination; });
      begin = end;
    }
    plan_.back.push_back({std::move(back_)});
    // Tiles that all have every key of their queries leave no partial results forward.
    if (plan_.direction == Direction::kBackward || splits_keys_) {
      mark_partial_transfers(layout_, &plan_);
    }
  }

  const TileDraft& draft_;
  const TokenLayout& layout_;
  AttentionPlan plan_;
  std::vector<Transfer> out_;
  std::vector<Transfer> back_;
  bool splits_keys_ = false;  // whether some tile lacks keys of its queries
  // Reused for every server or document.
  std::vector<AttentionTask> remote_;
  std::vector<Range> document_keys_;
};

}  // namespace

AttentionPlan route_tiles(const TileDraft& draft) {
  return Router(draft).run();
}

}  // namespace longspan
