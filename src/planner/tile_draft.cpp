#include "planner/tile_draft.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace longspan {

bool join_tile(const Tile& next, AttentionTask* last) {
  if (last->document != next.document) return false;
  const bool follows = last->queries.end == next.queries.begin;
  const bool prefixes = last->keys.end == last->queries.end && next.keys.end == next.queries.end;
  if (follows && last->keys.begin == next.keys.begin && (prefixes || last->keys == next.keys)) {
    last->queries.end = next.queries.end;
    last->keys.end = next.keys.end;
    return true;
  }
  if (last->queries == next.queries && last->keys.end == next.keys.begin) {
    last->keys.end = next.keys.end;
    return true;
  }
  return false;
}

TileDraft::TileDraft(const TokenLayout& layout, int chunk, Direction direction,
                     const PlanningCosts& costs, std::vector<Tile> room)
    : layout_(&layout),
      costs_(&costs),
      chunk_(chunk),
      direction_(direction),
      tiles_(std::move(room)),
      first_tile_(static_cast<size_t>(layout.num_ranks()) + 1, 0),
      load_s_(static_cast<size_t>(layout.num_ranks()), 0.0) {
  tiles_.clear();
  const Range line = layout.chunk(chunk);
  if (line.empty()) return;
  int32_t document = layout.document_at(line.begin);
  // And as many as passes may add to a server.
  constexpr int kAddedToEach = 8;
  tiles_.reserve(static_cast<size_t>(layout.document_at(line.end - 1) - document +
                                     (1 + kAddedToEach) * num_ranks()));
  for (int rank = 0; rank < num_ranks(); ++rank) {
    const Range piece = layout.piece(chunk, rank);
    const int server = is_server(rank) ? rank : kUnplaced;
    for (int64_t at = piece.begin; at < piece.end;) {
      const Range whole = layout.document(document);
      const Range queries{at - whole.begin, std::min(piece.end, whole.end) - whole.begin};
      const Range keys{0, queries.end};
      add_load(tiles_.emplace_back(document, rank, server, queries, keys, cost_s(queries, keys)));
      at = queries.end + whole.begin;
      if (at == whole.end) ++document;
    }
    first_tile_[static_cast<size_t>(rank) + 1] = tiles_.size();
  }
  is_touched_.assign(tiles_.size(), 0);
  for (size_t idx = 0; num_unplaced_ > 0 && idx < tiles_.size(); ++idx) {
    if (tiles_[idx].server == kUnplaced) touch(idx);
  }
}

double TileDraft::cost_s(const Tile& tile, const Range& queries) const {
  return cost_s(queries, visible_keys(tile.keys, queries.end));
}

void TileDraft::touch(size_t idx) {
  if (idx >= is_touched_.size() || is_touched_[idx] != 0) return;
  is_touched_[idx] = 1;
  touched_.push_back(idx);
}

void TileDraft::add_load(const Tile& tile) {
  total_s_ += tile.cost_s;
  if (tile.server == kUnplaced) {
    ++num_unplaced_;
  } else {
    load_s_[static_cast<size_t>(tile.server)] += tile.cost_s;
  }
}

void TileDraft::remove_load(const Tile& tile) {
  total_s_ -= tile.cost_s;
  if (tile.server == kUnplaced) {
    --num_unplaced_;
  } else {
    load_s_[static_cast<size_t>(tile.server)] -= tile.cost_s;
  }
}

void TileDraft::add(Tile tile) {
  tile.cost_s = cost_s(tile.queries, tile.keys);
  add_load(tile);
  touched_.push_back(tiles_.size());
  tiles_.push_back(tile);
}

void TileDraft::place(size_t idx, int server) {
  touch(idx);
  Tile& tile = tiles_[idx];
  remove_load(tile);
  tile.server = server;
  add_load(tile);
}

void TileDraft::reshape(size_t idx, const Range& queries, const Range& keys) {
  touch(idx);
  Tile& tile = tiles_[idx];
  remove_load(tile);
  tile.queries = queries;
  tile.keys = keys;
  tile.cost_s = cost_s(queries, keys);
  add_load(tile);
}

void TileDraft::replace_document(int32_t document, const std::vector<Tile>& tiles) {
  const std::vector<char> was_touched = std::move(is_touched_);
  is_touched_.clear();
  touched_.clear();
  size_t kept = 0;
  size_t idx = 0;
  const auto keep_others = [&](size_t end) {
    for (; idx < end; ++idx) {
      if (tiles_[idx].document == document) {
        remove_load(tiles_[idx]);
      } else {
        if (idx < was_touched.size()) is_touched_.push_back(was_touched[idx]);
        if (idx >= was_touched.size() || was_touched[idx] != 0) touched_.push_back(kept);
        tiles_[kept++] = tiles_[idx];
      }
    }
  };
  for (size_t& end : first_tile_) {
    keep_others(end);
    end = kept;
  }
  keep_others(tiles_.size());
  tiles_.resize(kept);
  for (const Tile& tile : tiles) add(tile);
}

void TileDraft::replace_all(const std::vector<Tile>& tiles) {
  tiles_.clear();
  touched_.clear();
  is_touched_.clear();
  first_tile_.assign(first_tile_.size(), 0);
  load_s_.assign(load_s_.size(), 0.0);
  total_s_ = 0;
  num_unplaced_ = 0;
  for (const Tile& tile : tiles) add(tile);
}

void TileDraft::give_queries(size_t idx, const Range& queries, int server) {
  const Tile whole = tiles_[idx];
  if (queries == whole.queries) return place(idx, server);
  const bool at_begin = queries.begin == whole.queries.begin;
  LONGSPAN_CHECK(whole.queries.contains(queries) && (at_begin || queries.end == whole.queries.end),
                 "queries ", queries, " of a tile of ", whole.queries);
  const Range kept =
      at_begin ? Range{queries.end, whole.queries.end} : Range{whole.queries.begin, queries.begin};
  Tile given = whole;
  given.queries = queries;
  given.keys = visible_keys(whole.keys, queries.end);
  given.server = server;
  const Range kept_keys = visible_keys(whole.keys, kept.end);
  // Queries before the tile's first key see nothing of it and need not be kept or sent.
  if (kept_keys.empty()) {
    place(idx, server);
    reshape(idx, given.queries, given.keys);
    return;
  }
  reshape(idx, kept, kept_keys);
  if (!given.keys.empty()) add(given);
}

}  // namespace longspan
