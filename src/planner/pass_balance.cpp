#include "planner/pass_balance.h"

#include <algorithm>
#include <utility>

#include "planner/balance_supplies.h"
#include "planner/guest_memory.h"
#include "planner/least_loaded.h"
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

// A server below the level when the round began.
struct Receiver {
  int rank = 0;
  size_t node = 0;  // all alike where nodes do not matter
  double deficit_s = 0;
  double node_deficit_s = 0;
};

// How long keys would take to come to a server, to be asked of many.
struct KeyWait {
  int32_t document = 0;
  double left_s = 0;  // work that they are for
  double keys_s = 0;
  double window_s = 0;
};

class Balancer {
 public:
  Balancer(double epsilon, bool keys_in_time, TileDraft* draft)
      : draft_(*draft),
        keys_in_time_(keys_in_time),
        ranks_(static_cast<size_t>(draft->num_ranks())),
        levels_(*draft, epsilon),
        supplies_(*draft, levels_),
        least_loaded_(*draft, levels_),
        memory_(*draft) {
    const auto per_node = static_cast<size_t>(draft->costs().links.servers_per_node);
    node_of_.reserve(ranks_);
    for (size_t rank = 0; rank < ranks_; ++rank) node_of_.push_back(rank / per_node);
  }

  // Servers give down to, and take up to, (1 + slack) times the level. Returns whether anything may
  // have moved.
  bool run_round(double slack) {
    levels_.set(slack);
    least_loaded_.forget();
    if (!anybody_gives()) return false;
    memory_.recount();
    order_receivers();
    supplies_.collect(mean_deficit_s_);
    if (supplies_.empty()) return false;
    for (const SupplyGroup& group : supplies_.groups()) deal(group);
    return true;
  }

 private:
  double deficit_s(int rank) const { return levels_.deficit_s(rank); }

  bool anybody_gives() const {
    for (int rank = 0; rank < draft_.num_ranks(); ++rank) {
      if (levels_.gives(rank)) return true;
    }
    return draft_.has_unplaced();
  }

  void order_receivers() {
    receivers_.clear();
    const bool by_node = has_nodes(draft_);
    for (int rank = 0; rank < draft_.num_ranks(); ++rank) {
      if (!draft_.is_server(rank) || deficit_s(rank) <= 0) continue;
      receivers_.push_back({rank, by_node ? node(rank) : 0, deficit_s(rank)});
    }
    sort_receivers();
    next_receiver_ = 0;
    node_document_.assign(ranks_, -1);
    keys_s_.assign(ranks_, 0.0);
    double sum = 0;
    for (const Receiver& receiver : receivers_) sum += receiver.deficit_s;
    // At least something, so that divisions by it stay finite.
    mean_deficit_s_ = std::max(sum, draft_.total_s() * 1e-9) /
                      static_cast<double>(std::max<size_t>(receivers_.size(), 1));
  }

  // Those that lack most first. Of several nodes, the one that lacks most: keys enter a node once,
  // so a document's takers had better be neighbours.
  void sort_receivers() {
    // They ascend, so those of a node stand together.
    for (size_t begin = 0; begin < receivers_.size();) {
      size_t end = begin;
      double node_deficit_s = 0;
      for (; end < receivers_.size() && receivers_[end].node == receivers_[begin].node; ++end) {
        node_deficit_s += receivers_[end].deficit_s;
      }
      for (; begin < end; ++begin) receivers_[begin].node_deficit_s = node_deficit_s;
    }
    std::sort(receivers_.begin(), receivers_.end(), [](const Receiver& a, const Receiver& b) {
      if (a.node_deficit_s != b.node_deficit_s) return a.node_deficit_s > b.node_deficit_s;
      if (a.node == b.node && a.deficit_s != b.deficit_s) return a.deficit_s > b.deficit_s;
      return a.rank < b.rank;
    });
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
    const auto& guests = supplies_.guests();
    auto sorted = std::ssize(ranks);
    for (auto guest = std::lower_bound(guests.begin(), guests.end(), std::pair(document, -1));
         guest != guests.end() && guest->first == document; ++guest) {
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
    while (next_receiver_ < receivers_.size() && !lacks(receivers_[next_receiver_].rank, least_s)) {
      ++next_receiver_;
    }
    const ExchangeWindow& window = draft_.pass_costs().window;
    const KeyWait wait{tile.document, left_s, keys_s(tile.keys),
                       std::max(window.enter_s, window.exit_s)};
    for (size_t at = next_receiver_; at < receivers_.size(); ++at) {
      const int rank = receivers_[at].rank;
      if (lacks(rank, least_s) && !is_keys_for_little(rank, wait)) return rank;
    }
    const bool may_be_late = !keys_in_time_ || tile.server == kUnplaced;
    return may_be_late && next_receiver_ < receivers_.size() ? receivers_[next_receiver_].rank
                                                             : kUnplaced;
  }

  // Whether the tile's keys, that no server of the node has yet, take longer to come than the work
  // that they are for, or are the last of many small ones that take most of the window together.
  bool is_keys_for_little(int rank, const KeyWait& wait) const {
    if (node_document_[node(rank)] == wait.document) return false;
    const double old_s = keys_s_[static_cast<size_t>(rank)];
    if (keys_in_time_) {
      // The servers of a node that will share the keys.
      const double takers = std::clamp(wait.left_s / deficit_s(rank), 1.0,
                                       static_cast<double>(draft_.costs().links.servers_per_node));
      return old_s + wait.keys_s / takers > kTimelyWait * wait.window_s;
    }
    if (wait.keys_s > kLongWait * wait.window_s) {
      return wait.keys_s > std::min(wait.left_s, deficit_s(rank));
    }
    return old_s > 0 && old_s + wait.keys_s > kMostWait * wait.window_s;
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

  // Whether its server has more than a row of tiles, and more than a little, too much.
  bool has_row_too_much(const Tile& tile, double row_s) const {
    const double target = levels_.target_s(tile.server);
    return -deficit_s(tile.server) > std::max(row_s, kLeastSurplus * target);
  }

  // Where every server lacks less than half a row of tiles, but the giver has more than a whole one
  // too much: whether the busier of the two is less busy once a row has moved.
  bool gains_by_one_row(const Tile& tile, double row_s, int receiver) const {
    const auto busy_s = [&](int rank, double more_s) {
      return (draft_.load_s(rank) + more_s) / draft_.costs().speed[static_cast<size_t>(rank)] +
             levels_.base_s(rank);
    };
    return receiver != tile.server &&
           busy_s(receiver, row_s) < (1 - kLeastGain) * busy_s(tile.server, 0);
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
      const double row_s = row_cost_s(draft_, tile);
      const double least_s = row_s / 2;
      if (!must_place && left_s < least_s) return;
      int receiver = pick_receiver(tile, left_s, must_place ? 0 : least_s);
      double amount_s = left_s;
      if (receiver != kUnplaced) {
        amount_s = std::min(left_s, deficit_s(receiver));
      } else {
        if (!must_place && (keys_in_time_ || !has_row_too_much(tile, row_s))) return;
        receiver = least_loaded_.rank();
        if (!must_place && !gains_by_one_row(tile, row_s, receiver)) return;
        if (!must_place) amount_s = row_s;
      }
      const Range given = stretch(tile, amount_s, from_begin, must_place);
      if (given.empty()) return;
      const bool is_last_resort = !lacks(receiver, 0);
      if (!memory_.takes(receiver, tile, given) && !(must_place && is_last_resort)) {
        if (is_last_resort) return;
        continue;
      }
      draft_.give_queries(idx, given, receiver);
      least_loaded_.note_change(receiver);
      if (tile.server != kUnplaced) least_loaded_.note_change(tile.server);
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
      return static_cast<double>(queries) * supplies_.query_bytes() +
             takers * static_cast<double>(keys) * supplies_.key_bytes();
    };
    return total(low - tile.queries.begin, visible_keys(tile.keys, low).size()) <
           total(tile.queries.end - high, tile.keys.size());
  }

  TileDraft& draft_;
  const bool keys_in_time_;
  const size_t ranks_;
  BalanceLevels levels_;
  BalanceSupplies supplies_;
  LeastLoaded least_loaded_;
  std::vector<size_t> node_of_;  // of each rank: no division for each question
  double mean_deficit_s_ = 0;
  GuestMemory memory_;
  std::vector<int> preferred_;  // of the group that is dealt out
  size_t next_preferred_ = 0;
  std::vector<Receiver> receivers_;  // by falling deficit when the round began
  size_t next_receiver_ = 0;
  std::vector<int32_t> node_document_;  // that a server of each node took last
  std::vector<double> keys_s_;          // of what each server took
};

}  // namespace

void balance(double epsilon, TileDraft* draft, bool keys_in_time) {
  Balancer balancer(epsilon, keys_in_time, draft);
  for (int round = 0; round < kMaxRounds; ++round) {
    // Later rounds settle small remainders: there all servers below the tolerance may take some.
    const double slack = round == 0 ? 0 : epsilon / 2;
    if (!balancer.run_round(slack)) return;
  }
}

}  // namespace longspan
