// A plan under construction: tiles of attention, each on a server, with their cost.
//
// A *tile* is queries x keys of one document, the queries inside one home piece. The passes of the
// planner (attention_planner.h) cut tiles and move them; rows and rounds follow from the outcome
// (tile_routing.h). The draft keeps the load of each server, in seconds at speed 1.
//
//   TileDraft draft(layout, chunk, Direction::kForward, costs);   // every tile at home
//   draft.give_queries(tile_idx, {1024, 2048}, 5);                // a stretch of it to server 5
//
// Most documents are short and stay at home whole. So the tiles as they were cut at first keep
// their places, home by home, and passes look for the few others only: `first_tiles`,
// `for_each_stray`.
//
// One thread.
#pragma once

#include <utility>
#include <vector>

#include "planner/attention_plan.h"
#include "planner/planning_costs.h"

namespace longspan {

// Of tiles whose home is no server, until a pass places them.
inline constexpr int kUnplaced = -1;

struct Tile {
  int32_t document = 0;
  int home = 0;  // rank of the queries
  int server = kUnplaced;
  Range queries;  // document positions
  Range keys;     // document positions, none beyond the last query
  double cost_s = 0;
};

// Half-open.
struct IndexRange {
  size_t begin = 0;
  size_t end = 0;
};

class TileDraft {
 public:
  // `room`: a list whose memory the tiles may take.
  TileDraft(const TokenLayout& layout, int chunk, Direction direction, const PlanningCosts& costs,
            std::vector<Tile> room = {});

  const TokenLayout& layout() const { return *layout_; }
  int chunk() const { return chunk_; }
  Direction direction() const { return direction_; }
  const PlanningCosts& costs() const { return *costs_; }
  const PassCosts& pass_costs() const { return costs_->pass(direction_); }
  int num_ranks() const { return layout_->num_ranks(); }

  const std::vector<Tile>& tiles() const { return tiles_; }
  const Tile& tile(size_t idx) const { return tiles_[idx]; }
  // Indices of the tiles that were cut from this rank's piece at first, one for each document, in
  // their order: they may have become smaller or moved. Added tiles come after those of all ranks.
  IndexRange first_tiles(int rank) const {
    const auto idx = static_cast<size_t>(rank);
    return {first_tile_[idx], first_tile_[idx + 1]};
  }
  // Tiles that were added, cut or moved since the draft was made, each once, and those whose home
  // is no server.
  const std::vector<size_t>& touched() const { return touched_; }
  bool is_touched(size_t idx) const { return idx >= is_touched_.size() || is_touched_[idx] != 0; }
  // Whether the tile is not where it was cut: on another server, or added.
  bool is_stray(size_t idx) const {
    return idx >= first_tile_.back() || tiles_[idx].server != tiles_[idx].home;
  }
  bool is_server(int rank) const { return costs_->speed[static_cast<size_t>(rank)] > 0; }
  double load_s(int rank) const { return load_s_[static_cast<size_t>(rank)]; }
  const std::vector<double>& loads_s() const { return load_s_; }
  // Whether some tile is on no server: then its home is none.
  bool has_unplaced() const { return num_unplaced_ > 0; }
  // Of all tiles, placed or not.
  double total_s() const { return total_s_; }

  double cost_s(const Range& queries, const Range& keys) const {
    return pass_costs().attention.task_s(queries, keys);
  }
  // Cost of some of a tile's queries, with the keys that they see.
  double cost_s(const Tile& tile, const Range& queries) const;

  void place(size_t idx, int server);
  // Cuts `queries`, a stretch at either end of the tile, off and places them; the whole tile if
  // it is all of it.
  void give_queries(size_t idx, const Range& queries, int server);
  // Replaces a tile by its part with these keys; used with add() to cut a tile along its keys.
  void reshape(size_t idx, const Range& queries, const Range& keys);
  void add(Tile tile);
  // Tiles that cover the same pairs in another way.
  void replace_document(int32_t document, const std::vector<Tile>& tiles);
  void replace_all(const std::vector<Tile>& tiles);

  // The memory of a draft that is done with.
  std::vector<Tile> take_room() { return std::move(tiles_); }

 private:
  void touch(size_t idx);
  void add_load(const Tile& tile);
  void remove_load(const Tile& tile);

  const TokenLayout* layout_;
  const PlanningCosts* costs_;
  int chunk_;
  Direction direction_;
  std::vector<Tile> tiles_;
  std::vector<size_t> first_tile_;  // of each rank's piece; one more at the end
  std::vector<size_t> touched_;
  std::vector<char> is_touched_;  // of each first tile
  std::vector<double> load_s_;
  double total_s_ = 0;
  int64_t num_unplaced_ = 0;
};

// Makes one task of both, if that covers the same pairs: neighbouring queries that see all keys
// from the same first one on, or the same queries with neighbouring keys. False if it cannot.
bool join_tile(const Tile& next, AttentionTask* last);

// The part of [0, keys.end) that queries up to `query_end` see.
inline Range visible_keys(const Range& keys, int64_t query_end) {
  return {keys.begin, std::max(keys.begin, std::min(keys.end, query_end))};
}

}  // namespace longspan
