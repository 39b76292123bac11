#include "planner/tile_routing.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "base/check.h"
#include "planner/wire_order.h"

namespace longspan {
namespace {

// After those of all documents.
constexpr int32_t kNoDocument = std::numeric_limits<int32_t>::max();

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

bool is_before(const Tile& a, const Tile& b) {
  if (a.document != b.document) return a.document < b.document;
  if (a.queries.begin != b.queries.begin) return a.queries.begin < b.queries.begin;
  return a.keys.begin < b.keys.begin;
}

// The tiles of each server that were not cut there, by document, queries and keys.
class Guests {
 public:
  explicit Guests(const TileDraft& draft) : begin_(static_cast<size_t>(draft.num_ranks()) + 1, 0) {
    LONGSPAN_CHECK(!draft.has_unplaced(), "some tiles are on no server");
    for (const size_t idx : draft.touched()) {
      if (draft.is_stray(idx)) ++begin_[static_cast<size_t>(draft.tile(idx).server) + 1];
    }
    for (size_t rank = 1; rank < begin_.size(); ++rank) begin_[rank] += begin_[rank - 1];
    tiles_.resize(begin_.back());
    std::vector<size_t> next(begin_.begin(), begin_.end() - 1);
    for (const size_t idx : draft.touched()) {
      const Tile& tile = draft.tile(idx);
      if (draft.is_stray(idx)) tiles_[next[static_cast<size_t>(tile.server)]++] = &tile;
    }
    for (size_t rank = 0; rank + 1 < begin_.size(); ++rank) {
      std::sort(tiles_.begin() + static_cast<std::ptrdiff_t>(begin_[rank]),
                tiles_.begin() + static_cast<std::ptrdiff_t>(begin_[rank + 1]),
                [](const Tile* one, const Tile* other) { return is_before(*one, *other); });
    }
  }

  std::span<const Tile* const> of(size_t rank) const {
    return {tiles_.data() + begin_[rank], begin_[rank + 1] - begin_[rank]};
  }

 private:
  std::vector<const Tile*> tiles_;
  std::vector<size_t> begin_;  // of each server; one more at the end
};

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
    const Guests guests(draft_);
    for (int rank = 0; rank < ranks_; ++rank) {
      const auto idx = static_cast<size_t>(rank);
      routed_.task_s.first.push_back(routed_.task_s.seconds.size());
      add_tasks(rank, guests.of(idx));
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
      mark_more_partial_transfers(routed_.other_parts, &plan_.back);
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

  // Tasks whose rows are all at home come first. `guests`: of this server.
  void add_tasks(int rank, std::span<const Tile* const> guests) {
    ServerPlan& server = plan_.servers[static_cast<size_t>(rank)];
    const IndexRange own = draft_.first_tiles(rank);
    server.tasks.reserve(own.end - own.begin + guests.size());
    remote_tasks_.clear();
    remote_s_.clear();
    query_rows_.clear();
    key_rows_.clear();
    auto guest = guests.begin();
    for (size_t idx = own.begin; idx < own.end;) {
      const Tile& tile = draft_.tile(idx);
      const int32_t next_guest = guest != guests.end() ? (*guest)->document : kNoDocument;
      if (next_guest < tile.document) {
        guest = add_document(rank, nullptr, guest, guests.end(), &server);
      } else if (tile.server != rank) {
        ++idx;
      } else if (next_guest == tile.document) {
        guest = add_document(rank, &tile, guest, guests.end(), &server);
        ++idx;
      } else if (const size_t end = add_at_home(rank, {idx, own.end}, next_guest, &server);
                 end > idx) {
        idx = end;
      } else {
        add_document(rank, &tile, guest, guest, &server);
        ++idx;
      }
    }
    while (guest != guests.end()) {
      guest = add_document(rank, nullptr, guest, guests.end(), &server);
    }
    finish_tasks(&server);
  }

  // As most are: tiles that are the server's only ones of their documents, all rows at home. Takes
  // those from the begin of `tiles`, up to a document of a guest, and returns the index after them.
  size_t add_at_home(int rank, const IndexRange& tiles, int32_t next_guest, ServerPlan* server) {
    const Range piece = layout_.piece(plan_.chunk, rank);
    Range query_rows;
    Range key_rows;
    size_t idx = tiles.begin;
    for (; idx < tiles.end; ++idx) {
      const Tile& tile = draft_.tile(idx);
      if (tile.server != rank) continue;
      const int64_t line = layout_.document(tile.document).begin;
      const Range keys = shift(tile.keys, line);
      if (tile.document >= next_guest || !piece.contains(keys)) break;
      const Range queries = shift(tile.queries, line);
      const bool is_whole = tile.keys.begin == 0 && queries == keys;
      if (is_whole && keys.begin == query_rows.end && keys.begin == key_rows.end) {
        // The whole next document, as most are.
        query_rows.end = key_rows.end = keys.end;
      } else {
        grow(queries, &query_rows, &query_rows_);
        grow(keys, &key_rows, &key_rows_);
        note_split(tile);
      }
      server->tasks.push_back({tile.document, tile.queries, tile.keys});
      routed_.task_s.seconds.push_back(tile.cost_s);
    }
    if (!query_rows.empty()) append(query_rows, &query_rows_);
    if (!key_rows.empty()) append(key_rows, &key_rows_);
    return idx;
  }

  // `range` goes on where `last` ends, or begins a new one.
  static void grow(const Range& range, Range* last, std::vector<Range>* ranges) {
    if (range.begin == last->end) {
      last->end = range.end;
      return;
    }
    if (!last->empty()) append(*last, ranges);
    *last = range;
  }

  // All tiles of one document on the server: the one that was cut there, if any, and the guests of
  // it that come next. Returns the guest after those.
  template <typename Guest>
  Guest add_document(int rank, const Tile* own, Guest guest, Guest end, ServerPlan* server) {
    document_tiles_.clear();
    if (own != nullptr) document_tiles_.push_back(own);
    const int32_t document = own != nullptr ? own->document : (*guest)->document;
    for (; guest != end && (*guest)->document == document; ++guest) {
      document_tiles_.push_back(*guest);
    }
    if (own != nullptr) {
      for (size_t at = 1; at < document_tiles_.size() && is_before(*document_tiles_[at], *own);
           ++at) {
        std::swap(document_tiles_[at - 1], document_tiles_[at]);
      }
    }
    add_document(rank, server);
    return guest;
  }

  void add_document(int rank, ServerPlan* server) {
    const Range piece = layout_.piece(plan_.chunk, rank);
    const int64_t line = layout_.document(document_tiles_.front()->document).begin;
    TaskList local{server->tasks, routed_.task_s.seconds};
    TaskList remote{remote_tasks_, remote_s_};
    document_keys_.clear();
    for (const Tile* tile : document_tiles_) {
      append(shift(tile->queries, line), &query_rows_);
      note_split(*tile);
      const Range keys = shift(tile->keys, line);
      document_keys_.push_back(keys);
      const bool is_local = tile->home == rank && (piece.contains(keys) || are_at_home(rank, keys));
      add_task(*tile, is_local ? &local : &remote);
      local.may_join = is_local;
      remote.may_join = !is_local;
    }
    add_keys(&key_rows_);
  }

  void finish_tasks(ServerPlan* server) {
    server->query_rows.assign(query_rows_.begin(), query_rows_.end());
    server->key_rows.assign(key_rows_.begin(), key_rows_.end());
    std::vector<double>& seconds = routed_.task_s.seconds;
    const auto local_tasks = std::ssize(server->tasks);
    server->tasks.insert(server->tasks.end(), remote_tasks_.begin(), remote_tasks_.end());
    seconds.insert(seconds.end(), remote_s_.begin(), remote_s_.end());
    server->groups.reserve(2);
    if (local_tasks > 0) server->groups.push_back({0, 0, local_tasks});
    if (!remote_tasks_.empty()) {
      server->groups.push_back({1, local_tasks, std::ssize(server->tasks)});
    }
  }

  void note_split(const Tile& tile) {
    splits_keys_ |= tile.keys.begin != 0 || tile.keys.end != tile.queries.end;
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
  std::vector<const Tile*> document_tiles_;
};

}  // namespace

RoutedPlan route_tiles(const TileDraft& draft) {
  return Router(draft).run();
}

}  // namespace longspan
