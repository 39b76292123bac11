// The best placement of a tiny chunk, found by trying all of them: the yardstick of the planner.
//
// Every 128 x 128 tile of attention goes to any server; rows travel straight from home to server,
// results straight back. Costs are counted here, block by block, without the planner's or the
// prediction's code: pairs at one rate, bytes over bandwidth, windows; no overheads.
//
//   ExhaustiveSearch search(layout, Direction::kForward, costs);
//   search.best_makespan_s();
//
// One chunk, at most 32 blocks, document lengths and borders at multiples of 128 tokens. Time is
// servers to the power of tiles.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <vector>

#include "base/check.h"
#include "planner/planning_costs.h"

namespace longspan {

class ExhaustiveSearch {
 public:
  ExhaustiveSearch(const TokenLayout& layout, Direction direction, const PlanningCosts& costs)
      : costs_(costs), pass_(costs.pass(direction)), backward_(direction == Direction::kBackward) {
    for (int rank = 0; rank < layout.num_ranks(); ++rank) {
      if (costs.speed[static_cast<size_t>(rank)] > 0) servers_.push_back(static_cast<size_t>(rank));
    }
    home_.resize(static_cast<size_t>(layout.num_tokens() / kBlockTokens));
    for (size_t block = 0; block < home_.size(); ++block) {
      const auto line = static_cast<int64_t>(block) * kBlockTokens;
      home_[block] = static_cast<size_t>(layout.home(line).rank);
      const int32_t document = layout.document_at(line);
      const auto first = static_cast<size_t>(layout.document(document).begin / kBlockTokens);
      for (size_t key = first; key <= block; ++key) tiles_.push_back({block, key});
    }
    LONGSPAN_CHECK(home_.size() <= 32, "too many blocks: ", home_.size());
    const Range rows{0, kBlockTokens};
    tile_s_ = pass_.attention.task_s(rows, rows);
    query_blocks_.resize(costs.speed.size());
    key_blocks_.resize(costs.speed.size());
    tile_count_.resize(costs.speed.size());
  }

  size_t num_tiles() const { return tiles_.size(); }
  size_t num_servers() const { return servers_.size(); }
  double tile_s() const { return tile_s_; }

  double best_makespan_s() {
    best_s_ = std::numeric_limits<double>::infinity();
    place(0);
    return best_s_;
  }

 private:
  struct BlockTile {
    size_t query = 0;
    size_t key = 0;
  };

  void place(size_t tile) {
    if (tile == tiles_.size()) {
      best_s_ = std::min(best_s_, makespan_s());
      return;
    }
    for (const size_t server : servers_) {
      const uint32_t queries = query_blocks_[server];
      const uint32_t keys = key_blocks_[server];
      query_blocks_[server] |= uint32_t{1} << tiles_[tile].query;
      key_blocks_[server] |= uint32_t{1} << tiles_[tile].key;
      ++tile_count_[server];
      place(tile + 1);
      --tile_count_[server];
      query_blocks_[server] = queries;
      key_blocks_[server] = keys;
    }
  }

  double makespan_s() const {
    double busy_s = 0;
    for (const size_t server : servers_) {
      const double base = costs_.base_s.empty() ? 0 : costs_.base_s[server];
      busy_s = std::max(busy_s, base + tile_count_[server] * tile_s_ / costs_.speed[server]);
    }
    const double enter_s = leg_s(pass_.bytes.query_out, pass_.bytes.query_out, pass_.bytes.key_out,
                                 pass_.bytes.key_out);
    const double exit_s =
        leg_s(pass_.bytes.query_back, pass_.bytes.query_back_partial,
              backward_ ? pass_.bytes.key_back : 0, backward_ ? pass_.bytes.key_back_partial : 0);
    return busy_s + std::max(0.0, enter_s - pass_.window.enter_s) +
           std::max(0.0, exit_s - pass_.window.exit_s);
  }

  // Time of the busiest rank; rows travel between a block's home and its servers, either way.
  double leg_s(double query, double query_partial, double key, double key_partial) const {
    std::array<double, 8> home_side{};
    std::array<double, 8> server_side{};
    for (size_t block = 0; block < home_.size(); ++block) {
      add(query_blocks_, block, query, query_partial, &home_side, &server_side);
      add(key_blocks_, block, key, key_partial, &home_side, &server_side);
    }
    double busiest = 0;
    for (size_t rank = 0; rank < costs_.speed.size(); ++rank) {
      busiest = std::max({busiest, home_side[rank], server_side[rank]});
    }
    return busiest * kBlockTokens / costs_.links.between_nodes.bytes_per_s;
  }

  void add(const std::vector<uint32_t>& blocks, size_t block, double whole, double partial,
           std::array<double, 8>* home_side, std::array<double, 8>* server_side) const {
    int holders = 0;
    for (const size_t server : servers_) holders += static_cast<int>(blocks[server] >> block & 1);
    const double bytes = holders > 1 ? partial : whole;
    for (const size_t server : servers_) {
      if ((blocks[server] >> block & 1) == 0 || server == home_[block]) continue;
      (*home_side)[home_[block]] += bytes;
      (*server_side)[server] += bytes;
    }
  }

  const PlanningCosts& costs_;
  const PassCosts& pass_;
  bool backward_;
  std::vector<size_t> servers_;
  std::vector<size_t> home_;  // of each block
  std::vector<BlockTile> tiles_;
  double tile_s_ = 0;
  std::vector<uint32_t> query_blocks_;  // of each rank: those its tiles use
  std::vector<uint32_t> key_blocks_;
  std::vector<int> tile_count_;
  double best_s_ = 0;
};

}  // namespace longspan
