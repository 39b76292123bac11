#include "planner/tile_routing.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "planner/wire_order.h"

namespace longspan {
namespace {

[[noreturn]] void fail_order(const Range& last, const Range& next) {
  throw InternalError(text("ranges ", last, " and ", next, " are out of order"));
}

// Appends to a list that is normalized as long as ranges come in ascending order.
inline void append(const Range& range, std::vector<Range>* ranges) {
  if (ranges->empty() || ranges->back().end < range.begin) {
    ranges->push_back(range);
    return;
  }
  if (ranges->back().begin > range.begin) fail_order(ranges->back(), range);
  ranges->back().end = std::max(ranges->back().end, range.end);
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
    // What was at home from the start stands in order before what came.
    const auto came = std::is_sorted_until(indices.begin(), indices.end(), before);
    if (came == indices.end()) continue;
    std::sort(came, indices.end(), before);
    std::inplace_merge(indices.begin(), came, indices.end(), before);
  }
  return order;
}

class Router {
 public:
  explicit Router(const TileDraft& draft)
      : draft_(draft), layout_(draft.layout()), plan_(routed_.plan), ranks_(draft.num_ranks()) {
    plan_.direction = draft.direction();
    plan_.chunk = draft.chunk();
    plan_.servers.resize(static_cast<size_t>(ranks_));
    routed_.task_s.seconds.reserve(draft.tiles().size());
    routed_.task_s.first.reserve(static_cast<size_t>(ranks_));
  }

  RoutedPlan run() {
    TilesByServer order = order_tiles(draft_);
    for (int rank = 0; rank < ranks_; ++rank) {
      const auto idx = static_cast<size_t>(rank);
      routed_.task_s.first.push_back(routed_.task_s.seconds.size());
      add_tasks(rank, order.of(idx));
      add_transfers(rank, plan_.servers[idx].query_rows, RowKind::kQuery);
      add_transfers(rank, plan_.servers[idx].key_rows, RowKind::kKeyValue);
    }
    if (!out_.empty()) {
      // They came by rising destination, kind and line.
      sort_by_source(ranks_, &out_);
      plan_.out.push_back({std::move(out_)});
      plan_.back = mirrored(ranks_, plan_.direction, plan_.out);
    }
    // Tiles that all have every key of their queries leave no partial results forward.
    if (plan_.direction == Direction::kBackward || splits_keys_) {
      routed_.other_parts = rows_with_other_parts_if_direct(layout_, plan_);
      mark_partial_transfers(routed_.other_parts, &plan_);
    }
    return std::move(routed_);
  }

 private:
  // Tasks with their seconds; several tiles may be one task.
  struct TaskList {
    std::vector<AttentionTask>& tasks;
    std::vector<double>& seconds;
    bool may_join = false;  // whether the tile before went here too
  };

  // Tasks whose rows are all at home come first.
  void add_tasks(int rank, std::span<const size_t> tiles) {
    ServerPlan& server = plan_.servers[static_cast<size_t>(rank)];
    server.tasks.reserve(tiles.size());
    remote_tasks_.clear();
    remote_s_.clear();
    TaskList local{server.tasks, routed_.task_s.seconds};
    TaskList remote{remote_tasks_, remote_s_};
    const Range piece = layout_.piece(plan_.chunk, rank);
    query_rows_.clear();
    key_rows_.clear();
    for (auto at = tiles.begin(); at != tiles.end();) {
      const Tile& first = draft_.tile(*at);
      const int32_t document = first.document;
      const int64_t line = layout_.document(document).begin;
      const bool is_only = at + 1 == tiles.end() || draft_.tile(*(at + 1)).document != document;
      if (is_only && first.home == rank && piece.contains(shift(first.keys, line))) {
        // As most are.
        append(shift(first.queries, line), &query_rows_);
        append(shift(first.keys, line), &key_rows_);
        splits_keys_ |= first.keys.begin != 0 || first.keys.end != first.queries.end;
        server.tasks.push_back({document, first.queries, first.keys});
        local.seconds.push_back(first.cost_s);
        ++at;
        continue;
      }
      local.may_join = remote.may_join = false;
      document_keys_.clear();
      for (; at != tiles.end(); ++at) {
        const Tile& tile = draft_.tile(*at);
        if (tile.document != document) break;
        append(shift(tile.queries, line), &query_rows_);
        splits_keys_ |= tile.keys.begin != 0 || tile.keys.end != tile.queries.end;
        const Range keys = shift(tile.keys, line);
        document_keys_.push_back(keys);
        const bool is_local =
            tile.home == rank && (piece.contains(keys) || are_at_home(rank, keys));
        add_task(tile, is_local ? &local : &remote);
        local.may_join = is_local;
        remote.may_join = !is_local;
      }
      add_keys(&key_rows_);
    }
    server.query_rows.assign(query_rows_.begin(), query_rows_.end());
    server.key_rows.assign(key_rows_.begin(), key_rows_.end());
    const auto local_tasks = std::ssize(server.tasks);
    server.tasks.insert(server.tasks.end(), remote_tasks_.begin(), remote_tasks_.end());
    local.seconds.insert(local.seconds.end(), remote_s_.begin(), remote_s_.end());
    server.groups.reserve(2);
    if (local_tasks > 0) server.groups.push_back({0, 0, local_tasks});
    if (!remote_tasks_.empty()) {
      server.groups.push_back({1, local_tasks, std::ssize(server.tasks)});
    }
  }

  void add_task(const Tile& tile, TaskList* list) const {
    if (list->may_join && join_tile(tile, &list->tasks.back())) {
      const AttentionTask& joined = list->tasks.back();
      list->seconds.back() = draft_.cost_s(joined.queries, joined.keys);
      return;
    }
    list->tasks.push_back({tile.document, tile.queries, tile.keys});
    list->seconds.push_back(tile.cost_s);
  }

  void add_keys(std::vector<Range>* rows) {
    if (document_keys_.size() > 1) {
      std::sort(document_keys_.begin(), document_keys_.end(),
                [](const Range& a, const Range& b) { return a.begin < b.begin; });
    }
    for (const Range& keys : document_keys_) append(keys, rows);
  }

  // Of keys that reach beyond the rank's piece of this chunk.
  bool are_at_home(int rank, const Range& line) const {
    if (plan_.chunk == 0) return false;
    for (int64_t at = line.begin; at < line.end;) {
      const Home home = layout_.home(at);
      if (home.rank != rank) return false;
      at = layout_.piece(home.chunk, home.rank).end;
    }
    return true;
  }

  // Rows of other homes arrive in the out leg.
  void add_transfers(int rank, const std::vector<Range>& rows, RowKind kind) {
    const Range own = layout_.piece(plan_.chunk, rank);
    for (const Range& range : rows) {
      if (own.contains(range)) continue;
      Home home = layout_.home(range.begin);
      for (int64_t at = range.begin; at < range.end;) {
        const Range part{at, std::min(range.end, layout_.piece(home.chunk, home.rank).end)};
        if (home.rank != rank && !part.empty()) {
          out_.push_back({home.rank, rank, kind, part, false});
        }
        at = part.end;
        if (++home.rank == ranks_) home = {home.chunk + 1, 0};
      }
    }
  }

  const TileDraft& draft_;
  const TokenLayout& layout_;
  RoutedPlan routed_;
  AttentionPlan& plan_;
  const int ranks_;
  std::vector<Transfer> out_;
  bool splits_keys_ = false;  // whether some tile lacks keys of its queries
  // Reused for every server or document.
  std::vector<AttentionTask> remote_tasks_;
  std::vector<double> remote_s_;
  std::vector<Range> query_rows_;
  std::vector<Range> key_rows_;
  std::vector<Range> document_keys_;
};

}  // namespace

RoutedPlan route_tiles(const TileDraft& draft) {
  return Router(draft).run();
}

}  // namespace longspan
