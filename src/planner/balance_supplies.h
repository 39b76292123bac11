// What servers above the level give away: stretches of tiles, fewest bytes for the work first.
//
//   BalanceSupplies supplies(draft, levels);
//   supplies.collect(mean_deficit_s);
//   for (const SupplyGroup& group : supplies.groups()) {
//     for (size_t idx = group.begin; idx < group.end; ++idx) deal(supplies[idx]);
//   }
//
// Tiles on no server are given wholly. Follows a draft and its levels, which must outlive it; the
// lists are those of the last collect(). One thread.
#pragma once

#include <utility>
#include <vector>

#include "planner/balance_levels.h"

namespace longspan {

// A stretch of one tile.
struct Supply {
  size_t tile = 0;
  double amount_s = 0;
};

// The supplies of one document, [begin, end) of the list, in the order of its queries.
struct SupplyGroup {
  size_t begin = 0;
  size_t end = 0;
  double amount_s = 0;
};

// What the last row of a tile costs: the least that can be cut off.
double row_cost_s(const TileDraft& draft, const Tile& tile);

// Whether keys may enter a node for several servers at once.
bool has_nodes(const TileDraft& draft);

class BalanceSupplies {
 public:
  BalanceSupplies(const TileDraft& draft, const BalanceLevels& levels);

  // `mean_deficit_s`: what a taker lacks.
  void collect(double mean_deficit_s);

  bool empty() const { return supplies_.empty(); }
  const Supply& operator[](size_t idx) const { return supplies_[idx]; }
  // Large groups first, largest first; then the small ones in line order, so that neighbours on
  // the line stay together.
  std::vector<SupplyGroup> groups();
  // (document, server) of tiles away from home; sorted.
  const std::vector<std::pair<int32_t, int>>& guests() const { return guests_; }
  // Of a query (key) row that is worked on away from home.
  double query_bytes() const { return query_bytes_; }
  double key_bytes() const { return key_bytes_; }

 private:
  // A tile of a server that gives.
  struct Offer {
    int server = 0;
    double bytes_per_s = 0;  // that giving its work away takes
    size_t tile = 0;

    // As a heap wants it: the best offer is the greatest.
    bool operator<(const Offer& better) const {
      return bytes_per_s != better.bytes_per_s ? bytes_per_s > better.bytes_per_s
                                               : tile > better.tile;
    }
  };

  void find_strays();
  Offer offer_of(size_t idx, double surplus_s) const;
  double bytes_to_give(const Tile& tile, double amount_s) const;
  void accept(double surplus_s);
  void order_by_document();

  const TileDraft& draft_;
  const BalanceLevels& levels_;
  double query_bytes_ = 0;
  double key_bytes_ = 0;
  double mean_deficit_s_ = 0;
  std::vector<double> surplus_s_;    // of servers that give; else 0
  std::vector<Offer> offers_;        // of one server
  std::vector<Offer> stray_offers_;  // by server
  std::vector<Supply> supplies_;
  std::vector<std::pair<int32_t, int>> guests_;
};

}  // namespace longspan
