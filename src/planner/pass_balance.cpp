#include "planner/pass_balance.h"

#include <algorithm>
#include <utility>

#include "planner/guest_memory.h"
#include "planner/plan_prediction.h"
#include "planner/tile_borders.h"

namespace longspan {
namespace {

// Costs of cut tiles add up to a little more than the whole: a few rounds settle that.
constexpr int kMaxRounds = 4;
// A row of tiles that moves must lower the busier server's time by this share, so that none moves
// back and forth.
constexpr double kLeastGain = 1e-6;
// And the server must be this far above the level: single rows cost many bytes for their work.
constexpr double kLeastSurplus = 0.015;
// Keys that come in less than this share of the window need not be thought about.
constexpr double kLongWait = 0.25;
// All of a server's together had better take no more of it than this,
constexpr double kMostWait = 0.6;
// and no more than this where keys must come in time.
constexpr double kTimelyWait = 0.8;

// Work that a server can give: a stretch of one tile.
struct Supply {
  size_t tile = 0;
  double amount_s = 0;
};

// A tile of a server above the level.
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

// The supplies of one document, [begin, end) of the list, in the order of its queries.
struct SupplyGroup {
  size_t begin = 0;
  size_t end = 0;
  double amount_s = 0;
};

class Balancer {
 public:
  // Servers give down to, and take up to, (1 + slack) times the level.
  Balancer(double epsilon, double slack, bool keys_in_time, TileDraft* draft)
      : draft_(*draft),
        keys_in_time_(keys_in_time),
        ranks_(static_cast<size_t>(draft->num_ranks())),
        target_s_(ranks_),
        memory_(*draft) {
    const RowBytes& bytes = draft->pass_costs().bytes;
    query_bytes_ = bytes.query_out + bytes.query_back;
    key_bytes_ = bytes.key_out + bytes.key_back_partial;
    set_targets(epsilon, slack);
    const auto per_node = static_cast<size_t>(draft->costs().links.servers_per_node);
    node_of_.reserve(ranks_);
    for (size_t rank = 0; rank < ranks_; ++rank) node_of_.push_back(rank / per_node);
  }

  // Returns whether anything moved.
  bool run_round() {
    if (!anybody_gives()) return false;
    order_receivers();
    collect_supplies();
    if (supplies_.empty()) return false;
    find_guests();
    for (const SupplyGroup& group : grouped_supplies()) deal(group);
    return true;
  }

 private:
  double deficit_s(int rank) const {
    return target_s_[static_cast<size_t>(rank)] - draft_.load_s(rank);
  }

  void set_targets(double epsilon, double slack) {
    const PlanningCosts& costs = draft_.costs();
    const double level = water_level_s(draft_.total_s(), costs.speed, costs.base_s);
    for (size_t rank = 0; rank < ranks_; ++rank) {
      const double base = base_s(static_cast<int>(rank));
      target_s_[rank] = (1 + slack) * costs.speed[rank] * std::max(0.0, level - base);
    }
    tolerance_ = epsilon - slack;
  }

  double row_cost_s(const Tile& tile) const {
    const int64_t rows = std::min(kBlockTokens, tile.queries.size());
    return draft_.cost_s(tile, {tile.queries.end - rows, tile.queries.end});
  }

  bool gives(int rank) const {
    return draft_.is_server(rank) &&
           -deficit_s(rank) > tolerance_ * target_s_[static_cast<size_t>(rank)];
  }

  bool anybody_gives() const {
    for (int rank = 0; rank < draft_.num_ranks(); ++rank) {
      if (gives(rank)) return true;
    }
    return draft_.has_unplaced();
  }

  void collect_supplies() {
    supplies_.clear();
    surplus_s_.assign(ranks_, 0.0);
    for (int rank = 0; rank < draft_.num_ranks(); ++rank) {
      if (gives(rank)) surplus_s_[static_cast<size_t>(rank)] = -deficit_s(rank);
    }
    offers_.clear();
    for (size_t idx = 0; idx < draft_.tiles().size(); ++idx) {
      const Tile& tile = draft_.tile(idx);
      if (tile.server == kUnplaced) {
        supplies_.push_back({idx, tile.cost_s});
      } else if (surplus_s_[static_cast<size_t>(tile.server)] > 0) {
        const double amount_s = std::min(surplus_s_[static_cast<size_t>(tile.server)], tile.cost_s);
        offers_.push_back({tile.server, bytes_to_give(tile, amount_s) / amount_s, idx});
      }
    }
    // Only tiles that moved are out of order.
    const auto by_server = [](const Offer& a, const Offer& b) { return a.server < b.server; };
    if (!std::is_sorted(offers_.begin(), offers_.end(), by_server)) {
      std::sort(offers_.begin(), offers_.end(), by_server);
    }
    for (size_t begin = 0; begin < offers_.size();) {
      size_t end = begin;
      while (end < offers_.size() && offers_[end].server == offers_[begin].server) ++end;
      accept({offers_.data() + begin, end - begin});
      begin = end;
    }
  }

  // Fewest bytes for the work first: that is long documents for much work and short ones for
  // little. A tile whose smallest stretch is far more than what is left stays. Few are taken of
  // many, so the offers are not sorted.
  void accept(std::span<Offer> offers) {
    double surplus = surplus_s_[static_cast<size_t>(offers.front().server)];
    std::make_heap(offers.begin(), offers.end());
    for (auto end = offers.end(); surplus > 0 && end != offers.begin(); --end) {
      std::pop_heap(offers.begin(), end);
      const Offer& offer = *std::prev(end);
      const Tile& tile = draft_.tile(offer.tile);
      if (row_cost_s(tile) > 2 * surplus) continue;
      supplies_.push_back({offer.tile, std::min(surplus, tile.cost_s)});
      surplus -= supplies_.back().amount_s;
    }
  }

  // An estimate: every taker fetches all keys of the tile.
  double bytes_to_give(const Tile& tile, double amount_s) const {
    const auto rows = static_cast<double>(tile.queries.size()) * amount_s / tile.cost_s;
    const double takers = std::max(1.0, amount_s / mean_deficit_s_);
    return rows * query_bytes_ + takers * static_cast<double>(tile.keys.size()) * key_bytes_;
  }

  // Whether keys may enter a node for several servers at once.
  bool has_nodes() const {
    const int per_node = draft_.costs().links.servers_per_node;
    return per_node > 1 && per_node < draft_.num_ranks();
  }

  // Large groups first, largest first; then the small ones in line order, so that neighbours on
  // the line stay together.
  std::vector<SupplyGroup> grouped_supplies() {
    // A document's last taker may be alone in its node; then it had better be one that needs few
    // keys.
    const bool last_first = has_nodes();
    std::sort(supplies_.begin(), supplies_.end(), [&](const Supply& one, const Supply& other) {
      const Tile& a = draft_.tile(one.tile);
      const Tile& b = draft_.tile(other.tile);
      if (a.document != b.document) return a.document < b.document;
      if (a.queries.begin != b.queries.begin) {
        return (a.queries.begin < b.queries.begin) != last_first;
      }
      return a.keys.begin < b.keys.begin;
    });
    std::vector<SupplyGroup> groups;
    double total = 0;
    for (size_t idx = 0; idx < supplies_.size(); ++idx) {
      const int32_t document = draft_.tile(supplies_[idx].tile).document;
      if (idx == 0 || document != draft_.tile(supplies_[idx - 1].tile).document) {
        groups.push_back({idx, idx, 0});
      }
      groups.back().end = idx + 1;
      groups.back().amount_s += supplies_[idx].amount_s;
      total += supplies_[idx].amount_s;
    }
    const double large = total / static_cast<double>(8 * ranks_);
    std::stable_sort(groups.begin(), groups.end(), [&](const SupplyGroup& a, const SupplyGroup& b) {
      const double one = a.amount_s >= large ? a.amount_s : 0;
      const double other = b.amount_s >= large ? b.amount_s : 0;
      return one > other;
    });
    return groups;
  }

  void order_receivers() {
    receivers_.clear();
    for (int rank = 0; rank < draft_.num_ranks(); ++rank) {
      if (draft_.is_server(rank) && deficit_s(rank) > 0) receivers_.push_back(rank);
    }
    sort_receivers();
    next_receiver_ = 0;
    node_document_.assign(ranks_, -1);
    keys_s_.assign(ranks_, 0.0);
    double sum = 0;
    for (const int rank : receivers_) sum += deficit_s(rank);
    // At least something, so that divisions by it stay finite.
    mean_deficit_s_ = std::max(sum, draft_.total_s() * 1e-9) /
                      static_cast<double>(std::max<size_t>(receivers_.size(), 1));
  }

  // Those that lack most first. Of several nodes, the one that lacks most: keys enter a node once,
  // so a document's takers had better be neighbours.
  void sort_receivers() {
    const bool by_node = has_nodes();
    std::vector<double> node_deficit_s(by_node ? ranks_ : 0, 0.0);
    if (by_node) {
      for (const int rank : receivers_) node_deficit_s[node(rank)] += deficit_s(rank);
    }
    std::sort(receivers_.begin(), receivers_.end(), [&](int one, int other) {
      if (by_node && node(one) != node(other)) {
        const double a = node_deficit_s[node(one)];
        const double b = node_deficit_s[node(other)];
        return a != b ? a > b : one < other;
      }
      const double a = deficit_s(one);
      const double b = deficit_s(other);
      return a != b ? a > b : one < other;
    });
  }

  // (document, server) of tiles away from home.
  void find_guests() {
    guests_.clear();
    for (const Tile& tile : draft_.tiles()) {
      if (tile.server != tile.home && tile.server != kUnplaced) {
        guests_.emplace_back(tile.document, tile.server);
      }
    }
    std::sort(guests_.begin(), guests_.end());
    guests_.erase(std::unique(guests_.begin(), guests_.end()), guests_.end());
  }

  bool lacks(int rank, double least_s) const {
    return draft_.is_server(rank) && deficit_s(rank) > least_s && !memory_.is_full(rank);
  }

  // Ranks to ask first: those with a piece of the document, those that took some of it before,
  // then the rest of the first ones' nodes.
  void find_preferred(const SupplyGroup& group, double least_s) {
    std::vector<int>& ranks = preferred_;
    ranks.clear();
    next_preferred_ = 0;
    const int32_t document = draft_.tile(supplies_[group.begin].tile).document;
    const Range line =
        intersect(draft_.layout().document(document), draft_.layout().chunk(draft_.chunk()));
    const int first = draft_.layout().home(line.begin).rank;
    const int last = draft_.layout().home(line.end - 1).rank;
    for (int rank = first; rank <= last; ++rank) {
      if (lacks(rank, least_s)) ranks.push_back(rank);
    }
    const auto by_deficit = [&](int one, int other) {
      const double a = deficit_s(one);
      const double b = deficit_s(other);
      return a != b ? a > b : one < other;
    };
    auto sorted = std::ssize(ranks);
    for (auto guest = std::lower_bound(guests_.begin(), guests_.end(), std::pair(document, -1));
         guest != guests_.end() && guest->first == document; ++guest) {
      const bool at_home = first <= guest->second && guest->second <= last;
      if (!at_home && lacks(guest->second, least_s)) ranks.push_back(guest->second);
    }
    std::sort(ranks.begin() + sorted, ranks.end(), by_deficit);
    sorted = std::ssize(ranks);
    const int per_node = draft_.costs().links.servers_per_node;
    if (per_node <= 1) return;
    const int node_end = std::min((last / per_node + 1) * per_node, draft_.num_ranks());
    for (int rank = first / per_node * per_node; rank < node_end; ++rank) {
      if ((rank < first || rank > last) && lacks(rank, least_s)) ranks.push_back(rank);
    }
    std::sort(ranks.begin() + sorted, ranks.end(), by_deficit);
  }

  // The server that takes next, or kUnplaced if none lacks enough. One that would get all keys from
  // outside for little work goes after the others, or not at all where keys must come in time.
  int pick_receiver(const Tile& tile, double left_s, double least_s) {
    for (; next_preferred_ < preferred_.size(); ++next_preferred_) {
      if (lacks(preferred_[next_preferred_], least_s)) return preferred_[next_preferred_];
    }
    while (next_receiver_ < receivers_.size() && !lacks(receivers_[next_receiver_], least_s)) {
      ++next_receiver_;
    }
    for (size_t at = next_receiver_; at < receivers_.size(); ++at) {
      const int rank = receivers_[at];
      if (!lacks(rank, least_s)) continue;
      if (!is_keys_for_little(rank, tile, left_s)) return rank;
    }
    const bool may_be_late = !keys_in_time_ || tile.server == kUnplaced;
    return may_be_late && next_receiver_ < receivers_.size() ? receivers_[next_receiver_]
                                                             : kUnplaced;
  }

  // Whether the tile's keys, that no server of the node has yet, take longer to come than the work
  // that they are for, or are the last of many small ones that take most of the window together.
  bool is_keys_for_little(int rank, const Tile& tile, double left_s) const {
    if (node_document_[node(rank)] == tile.document) return false;
    const PassCosts& pass = draft_.pass_costs();
    const double window_s = std::max(pass.window.enter_s, pass.window.exit_s);
    const double new_s = keys_s(tile.keys);
    const double old_s = keys_s_[static_cast<size_t>(rank)];
    if (keys_in_time_) {
      // The servers of a node that will share the keys.
      const double takers = std::clamp(left_s / deficit_s(rank), 1.0,
                                       static_cast<double>(draft_.costs().links.servers_per_node));
      return old_s + new_s / takers > kTimelyWait * window_s;
    }
    if (new_s > kLongWait * window_s) return new_s > std::min(left_s, deficit_s(rank));
    return old_s > 0 && old_s + new_s > kMostWait * window_s;
  }

  // Of keys between nodes, on the leg where they weigh more.
  double keys_s(const Range& keys) const {
    const RowBytes& bytes = draft_.pass_costs().bytes;
    const LinkClass& link = draft_.costs().links.between_nodes;
    if (link.bytes_per_s <= 0) return 0;
    return static_cast<double>(keys.size()) * std::max(bytes.key_out, bytes.key_back_partial) /
           link.bytes_per_s;
  }

  size_t node(int rank) const { return node_of_[static_cast<size_t>(rank)]; }

  int least_loaded() const {
    int best = kUnplaced;
    double most = 0;
    for (int rank = 0; rank < draft_.num_ranks(); ++rank) {
      if (!draft_.is_server(rank)) continue;
      const double relative = deficit_s(rank) / draft_.costs().speed[static_cast<size_t>(rank)];
      if (best != kUnplaced && relative <= most) continue;
      best = rank;
      most = relative;
    }
    return best;
  }

  // Whether its server has more than a row of tiles, and more than a little, too much.
  bool has_row_too_much(const Tile& tile) const {
    const double target = target_s_[static_cast<size_t>(tile.server)];
    return -deficit_s(tile.server) > std::max(row_cost_s(tile), kLeastSurplus * target);
  }

  // Where every server lacks less than half a row of tiles, but the giver has more than a whole one
  // too much: whether the busier of the two is less busy once a row has moved.
  bool gains_by_one_row(const Tile& tile, int receiver) const {
    const auto busy_s = [&](int rank, double more_s) {
      return (draft_.load_s(rank) + more_s) / draft_.costs().speed[static_cast<size_t>(rank)] +
             base_s(rank);
    };
    return receiver != tile.server &&
           busy_s(receiver, row_cost_s(tile)) < (1 - kLeastGain) * busy_s(tile.server, 0);
  }

  double base_s(int rank) const {
    const std::vector<double>& base = draft_.costs().base_s;
    return base.empty() ? 0 : base[static_cast<size_t>(rank)];
  }

  void deal(const SupplyGroup& group) {
    find_preferred(group, 0);
    for (size_t idx = group.begin; idx < group.end; ++idx) deal(supplies_[idx]);
  }

  // Gives a stretch of the tile away, piece by piece, starting at one end of it.
  void deal(const Supply& supply) {
    const size_t idx = supply.tile;
    const bool must_place = draft_.tile(idx).server == kUnplaced;
    const bool from_begin = must_place || cheaper_from_begin(supply);
    double left_s = supply.amount_s;
    while (true) {
      const Tile tile = draft_.tile(idx);
      const double least_s = row_cost_s(tile) / 2;
      if (!must_place && left_s < least_s) return;
      int receiver = pick_receiver(tile, left_s, must_place ? 0 : least_s);
      double amount_s = left_s;
      if (receiver != kUnplaced) {
        amount_s = std::min(left_s, deficit_s(receiver));
      } else {
        if (!must_place && (keys_in_time_ || !has_row_too_much(tile))) return;
        receiver = least_loaded();
        if (!must_place && !gains_by_one_row(tile, receiver)) return;
        if (!must_place) amount_s = row_cost_s(tile);
      }
      const Range given = stretch(tile, amount_s, from_begin, must_place);
      if (given.empty()) return;
      const bool is_last_resort = !lacks(receiver, 0);
      if (!memory_.takes(receiver, tile, given) && !(must_place && is_last_resort)) {
        if (is_last_resort) return;
        continue;
      }
      draft_.give_queries(idx, given, receiver);
      keys_s_[static_cast<size_t>(receiver)] += keys_s(visible_keys(tile.keys, given.end));
      node_document_[node(receiver)] = tile.document;
      if (given == tile.queries) return;
      left_s -= tile.cost_s - draft_.tile(idx).cost_s;
    }
  }

  // The queries at one end of the tile that cost about the amount. Of a tile that must be placed at
  // least one row of tiles, of others maybe none.
  Range stretch(const Tile& tile, double amount_s, bool from_begin, bool must_place) const {
    Range given = tile.queries;
    if (amount_s >= tile.cost_s) return given;
    if (from_begin) {
      given.end = border_at_cost(draft_, tile, amount_s);
      if (must_place && given.empty()) {
        given.end = std::min((given.begin / kBlockTokens + 1) * kBlockTokens, tile.queries.end);
      }
    } else {
      given.begin = border_at_cost(draft_, tile, tile.cost_s - amount_s);
    }
    return given;
  }

  // Whether a stretch at the tile's begin costs fewer bytes than one at its end: that has more
  // queries but needs fewer keys.
  bool cheaper_from_begin(const Supply& supply) const {
    const Tile& tile = draft_.tile(supply.tile);
    if (supply.amount_s >= tile.cost_s) return true;
    const double takers = std::max(1.0, supply.amount_s / mean_deficit_s_);
    const double share = supply.amount_s / tile.cost_s;
    const int64_t low = border_at_share(tile, share);
    const int64_t high = border_at_share(tile, 1 - share);
    const auto total = [&](int64_t queries, int64_t keys) {
      return static_cast<double>(queries) * query_bytes_ +
             takers * static_cast<double>(keys) * key_bytes_;
    };
    return total(low - tile.queries.begin, visible_keys(tile.keys, low).size()) <
           total(tile.queries.end - high, tile.keys.size());
  }

  TileDraft& draft_;
  const bool keys_in_time_;
  size_t ranks_;
  double tolerance_ = 0;
  std::vector<double> target_s_;
  double query_bytes_ = 0;  // of a row that is worked on away from home
  double key_bytes_ = 0;
  std::vector<size_t> node_of_;  // of each rank: no division for each question
  double mean_deficit_s_ = 0;
  std::vector<double> surplus_s_;  // of servers that give; else 0
  std::vector<Offer> offers_;
  std::vector<Supply> supplies_;
  std::vector<std::pair<int32_t, int>> guests_;
  GuestMemory memory_;
  std::vector<int> preferred_;  // of the group that is dealt out
  size_t next_preferred_ = 0;
  std::vector<int> receivers_;  // by falling deficit when the round began
  size_t next_receiver_ = 0;
  std::vector<int32_t> node_document_;  // that a server of each node took last
  std::vector<double> keys_s_;          // of what each server took
};

}  // namespace

void balance(double epsilon, TileDraft* draft, bool keys_in_time) {
  for (int round = 0; round < kMaxRounds; ++round) {
    // Later rounds settle small remainders: there all servers below the tolerance may take some.
    const double slack = round == 0 ? 0 : epsilon / 2;
    if (!Balancer(epsilon, slack, keys_in_time, draft).run_round()) return;
  }
}

}  // namespace longspan
