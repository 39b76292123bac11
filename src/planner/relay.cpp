#include "planner/relay.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "planner/held_rows.h"
#include "planner/launch_groups.h"
#include "planner/prediction_parts.h"
#include "planner/shared_rows.h"

namespace longspan {
namespace {

// A rank that sends this much more than the mean is hot, if that also takes this share of the time
// in which exchange hides.
constexpr double kHotFactor = 1.25;
constexpr double kHotWindowShare = 0.4;
// Where exchange stays late, homes that send up to these shares of the most that any home would
// send are tried as well: a round between costs time of its own.
constexpr double kPatience[] = {0.4, 0.6, 0.8, 1.0};
// Homes that send less than this share of the mean have nothing worth passing on.
constexpr double kLeastShare = 0.5;
// Rows are not cut finer than this, nor into more parts.
constexpr int64_t kLeastRows = 2 * kBlockTokens;
constexpr int64_t kMostParts = 8;

// What the two legs of a plan take beyond their windows.
double late_s(const AttentionPlan& plan, const PlanningCosts& costs) {
  const ExchangeWindow& window = costs.pass(plan.direction).window;
  return std::max(0.0, play_out(plan, costs).seconds() - window.enter_s) +
         std::max(0.0, play_back(plan, costs).seconds() - window.exit_s);
}

// Seconds of exchange in a round, from bytes alone.
class RoundLoads {
 public:
  RoundLoads(const ServerLinks& links, size_t ranks) : links_(links), loads_(ranks) {}

  void add(int source, int destination, bool inside, double out_bytes, double back_bytes) {
    const LinkClass& link = inside ? links_.inside_node : links_.between_nodes;
    if (link.bytes_per_s <= 0) return;
    const size_t side = inside ? 0 : 2;
    const double out_s = out_bytes / link.bytes_per_s;
    const double back_s = back_bytes / link.bytes_per_s;
    for (const auto& [rank, flow] : {std::pair(source, side), std::pair(destination, side + 1)}) {
      Flow& load = loads_[static_cast<size_t>(rank)][flow];
      load.out_s += out_s;
      load.back_s += back_s;
      out_s_ = std::max(out_s_, load.out_s);
      back_s_ = std::max(back_s_, load.back_s);
    }
  }

  double out_s() const { return out_s_; }
  double back_s() const { return back_s_; }

 private:
  struct Flow {
    double out_s = 0;
    double back_s = 0;
  };

  ServerLinks links_;
  std::vector<std::array<Flow, 4>> loads_;  // sent and received inside and between nodes
  double out_s_ = 0;
  double back_s_ = 0;
};

class Relays {
 public:
  Relays(const TokenLayout& layout, const PlanningCosts& costs, const AttentionPlan& plan)
      : layout_(layout),
        costs_(costs),
        pass_(costs.pass(plan.direction)),
        transfers_(plan.out.front().transfers),
        ranks_(static_cast<size_t>(layout.num_ranks())),
        alone_(1),
        direct_loads_(costs.links, ranks_),
        sent_(ranks_, 0.0),
        received_(ranks_, 0.0) {
    const int per_node = costs.links.servers_per_node;
    ranks_per_group_ = per_node < layout.num_ranks() ? per_node : 1;
  }

  bool has_hot_senders() {
    for (const Transfer& transfer : transfers_) {
      if (is_far(transfer.source, transfer.destination)) sent(transfer.source) += weight(transfer);
    }
    most_bytes_ = *std::max_element(sent_.begin(), sent_.end());
    set_goal();
    return most_bytes_ > goal_bytes_;
  }

  // Returns whether any rows take another way. After has_hot_senders().
  bool run() {
    split();
    if (shared_.stretches().empty()) return false;
    count_direct();
    double best_s = find_ways();
    double best_bytes = goal_bytes_;
    for (const double patience : kPatience) {
      if (best_s <= 0) break;
      goal_bytes_ = patience * most_bytes_;
      const double late_s = find_ways();
      if (late_s >= best_s) continue;
      best_s = late_s;
      best_bytes = goal_bytes_;
    }
    goal_bytes_ = best_bytes;
    rounds_ = std::move(alone_);
    is_recorded_ = true;
    find_ways();
    return rounds_.size() > 1;
  }

  // The out leg in wire order, neighbouring rows of one pair of ranks joined.
  std::vector<Round> rounds() {
    std::vector<Round> rounds;
    for (std::vector<Transfer>& transfers : rounds_) {
      sort_for_the_wire(&transfers);
      size_t last = 0;
      for (size_t idx = 1; idx < transfers.size(); ++idx) {
        if (goes_on(transfers[last], transfers[idx])) {
          transfers[last].line.end = transfers[idx].line.end;
        } else {
          transfers[++last] = transfers[idx];
        }
      }
      transfers.resize(last + 1);
      rounds.push_back({std::move(transfers)});
    }
    return rounds;
  }

  static void sort_for_the_wire(std::vector<Transfer>* transfers) {
    std::sort(transfers->begin(), transfers->end(), [](const Transfer& a, const Transfer& b) {
      return std::tie(a.source, a.destination, a.kind, a.line.begin) <
             std::tie(b.source, b.destination, b.kind, b.line.begin);
    });
  }

 private:
  // Takers of a stretch in one node (or a rank alone where there is one node).
  struct Group {
    std::span<const int> takers;
    int entry = 0;
  };

  double& sent(int rank) { return sent_[static_cast<size_t>(rank)]; }
  double& received(int rank) { return received_[static_cast<size_t>(rank)]; }
  int group(int rank) const { return rank / ranks_per_group_; }
  bool is_far(int one, int other) const { return group(one) != group(other); }

  // Of the leg that carries more.
  double weight(RowKind kind, int64_t rows) const {
    const RowBytes& bytes = pass_.bytes;
    const double row = kind == RowKind::kQuery ? std::max(bytes.query_out, bytes.query_back_partial)
                                               : std::max(bytes.key_out, bytes.key_back_partial);
    return static_cast<double>(rows) * row;
  }
  double weight(const Transfer& transfer) const {
    return weight(transfer.kind, transfer.line.size());
  }

  void set_goal() {
    double total_bytes = 0;
    for (const double bytes : sent_) total_bytes += bytes;
    mean_bytes_ = total_bytes / static_cast<double>(ranks_);
    const double window_s = std::max(pass_.window.enter_s, pass_.window.exit_s);
    const double hidden_bytes = window_s * costs_.links.between_nodes.bytes_per_s;
    goal_bytes_ = std::max(kHotFactor * mean_bytes_, kHotWindowShare * hidden_bytes);
  }

  // Transfers of rows that one rank takes stay as they are; the others become stretches.
  void split() {
    std::vector<Transfer>& direct = alone_[0];
    direct.reserve(transfers_.size());
    for (size_t begin = 0; begin < transfers_.size();) {
      const Transfer& first = transfers_[begin];
      size_t end = begin;
      while (end < transfers_.size() && transfers_[end].source == first.source) ++end;
      if (sent(first.source) < kLeastShare * mean_bytes_) {
        direct.insert(direct.end(), transfers_.begin() + static_cast<std::ptrdiff_t>(begin),
                      transfers_.begin() + static_cast<std::ptrdiff_t>(end));
      } else {
        for (const RowKind kind : {RowKind::kQuery, RowKind::kKeyValue}) split(begin, end, kind);
      }
      begin = end;
    }
  }

  void split(size_t begin, size_t end, RowKind kind) {
    of_kind_.clear();
    for (size_t idx = begin; idx < end; ++idx) {
      if (transfers_[idx].kind == kind) of_kind_.push_back(transfers_[idx]);
    }
    shared_.split(of_kind_, kLeastRows, &alone_[0]);
  }

  size_t count_groups(const SharedStretch& stretch) const {
    size_t groups = 0;
    int last = group(stretch.home);
    for (const int taker : shared_.takers(stretch)) {
      if (group(taker) == last || group(taker) == group(stretch.home)) continue;
      last = group(taker);
      ++groups;
    }
    return groups;
  }

  // What travels straight from home to its only taker, and how many bytes each home would send to
  // other nodes once each node got its rows once.
  void count_direct() {
    alone_sent_.assign(ranks_, 0.0);
    alone_received_.assign(ranks_, 0.0);
    for (const Transfer& transfer : alone_[0]) {
      const bool far = is_far(transfer.source, transfer.destination);
      add_load(transfer, /*partial=*/false, &direct_loads_);
      if (!far) continue;
      alone_sent_[static_cast<size_t>(transfer.source)] += weight(transfer);
      alone_received_[static_cast<size_t>(transfer.destination)] += weight(transfer);
    }
    copied_bytes_.assign(ranks_, 0.0);
    for (const SharedStretch& stretch : shared_.stretches()) {
      copied_bytes_[static_cast<size_t>(stretch.home)] +=
          static_cast<double>(count_groups(stretch)) * weight(stretch.kind, stretch.line.size());
    }
    for (size_t rank = 0; rank < ranks_; ++rank)
      sent_[rank] = alone_sent_[rank] + copied_bytes_[rank];
    most_bytes_ = *std::max_element(sent_.begin(), sent_.end());
    set_goal();
  }

  // Finds a way for all shared rows such that homes send `goal_bytes_` at most, if they can.
  // Returns by how much the exchange is late then.
  double find_ways() {
    received_ = alone_received_;
    share_of_copies_.assign(ranks_, 1.0);
    for (size_t rank = 0; rank < ranks_; ++rank) {
      sent_[rank] = alone_sent_[rank] + copied_bytes_[rank];
      if (sent_[rank] <= goal_bytes_) continue;
      share_of_copies_[rank] =
          std::max(0.0, goal_bytes_ - alone_sent_[rank]) / std::max(1.0, copied_bytes_[rank]);
      sent_[rank] = std::max(goal_bytes_, alone_sent_[rank]);
    }
    loads_.assign(1, direct_loads_);
    for (const SharedStretch& stretch : shared_.stretches()) relay(stretch);
    double out_s = 0;
    double back_s = 0;
    for (const RoundLoads& round : loads_) {
      out_s += round.out_s();
      back_s += round.back_s();
    }
    return std::max(0.0, out_s - pass_.window.enter_s) +
           std::max(0.0, back_s - pass_.window.exit_s);
  }

  void add_load(const Transfer& transfer, bool partial, RoundLoads* loads) const {
    const RowBytes& bytes = pass_.bytes;
    const bool query = transfer.kind == RowKind::kQuery;
    const auto rows = static_cast<double>(transfer.line.size());
    const double back = partial ? (query ? bytes.query_back_partial : bytes.key_back_partial)
                                : (query ? bytes.query_back : bytes.key_back);
    loads->add(transfer.source, transfer.destination,
               costs_.links.same_node(transfer.source, transfer.destination),
               rows * (query ? bytes.query_out : bytes.key_out), rows * back);
  }

  void send(int source, int destination, const SharedStretch& of, const Range& line, size_t round) {
    const Transfer transfer{source, destination, of.kind, line, false};
    if (loads_.size() <= round) loads_.emplace_back(costs_.links, ranks_);
    add_load(transfer, /*partial=*/true, &loads_[round]);
    if (!is_recorded_) return;
    if (rounds_.size() <= round) rounds_.resize(round + 1);
    rounds_[round].push_back(transfer);
  }

  void relay(const SharedStretch& stretch) {
    find_groups(stretch);
    const auto far_groups = static_cast<int64_t>(groups_.size());
    if (far_groups == 0) return;
    const double share = share_of_copies_[static_cast<size_t>(stretch.home)];
    const auto copies = std::clamp<int64_t>(
        static_cast<int64_t>(share * static_cast<double>(far_groups)), 1, far_groups);
    const int64_t parts = count_parts(stretch, copies);
    for (int64_t part = 0; part < parts; ++part) {
      const Range& line = stretch.line;
      relay_part(
          stretch,
          {line.begin + line.size() * part / parts, line.begin + line.size() * (part + 1) / parts},
          static_cast<size_t>(copies));
    }
  }

  // The takers in other nodes; those in the home's node are served by it.
  void find_groups(const SharedStretch& stretch) {
    groups_.clear();
    const std::span<const int> takers = shared_.takers(stretch);
    for (size_t begin = 0; begin < takers.size();) {
      size_t end = begin;
      while (end < takers.size() && group(takers[end]) == group(takers[begin])) ++end;
      if (is_far(stretch.home, takers[begin])) {
        groups_.push_back({takers.subspan(begin, end - begin), takers[begin]});
      } else {
        for (const int taker : takers.subspan(begin, end - begin)) {
          send(stretch.home, taker, stretch, stretch.line, 0);
        }
      }
      begin = end;
    }
  }

  // So many that those who pass parts on do not become hot by it.
  int64_t count_parts(const SharedStretch& stretch, int64_t copies) const {
    const auto left = static_cast<double>(std::ssize(groups_) - copies);
    if (left <= 0) return 1;
    const double passed_on_bytes = left * weight(stretch.kind, stretch.line.size());
    const double room_bytes = goal_bytes_ / 2 * static_cast<double>(copies);
    const int64_t most = std::min({kMostParts, std::max<int64_t>(1, std::ssize(groups_) / copies),
                                   std::max<int64_t>(1, stretch.line.size() / kLeastRows)});
    const double wanted =
        std::min(passed_on_bytes / std::max(1.0, room_bytes), static_cast<double>(kMostParts));
    return std::clamp<int64_t>(static_cast<int64_t>(wanted) + 1, 1, most);
  }

  void relay_part(const SharedStretch& stretch, const Range& line, size_t copies) {
    const double bytes = weight(stretch.kind, line.size());
    for (Group& group : groups_) {
      group.entry =
          *std::min_element(group.takers.begin(), group.takers.end(),
                            [&](int one, int other) { return received(one) < received(other); });
      received(group.entry) += bytes;
    }
    if (copies < groups_.size()) {
      std::stable_sort(groups_.begin(), groups_.end(), [&](const Group& one, const Group& other) {
        return sent(one.entry) < sent(other.entry);
      });
    }
    for (size_t idx = 0; idx < groups_.size(); ++idx) {
      const Group& group = groups_[idx];
      const bool from_home = idx < copies;
      const int source = from_home ? stretch.home : groups_[idx % copies].entry;
      if (!from_home) sent(source) += bytes;
      const size_t round = from_home ? 0 : 1;
      send(source, group.entry, stretch, line, round);
      for (const int taker : group.takers) {
        if (taker != group.entry) send(group.entry, taker, stretch, line, round + 1);
      }
    }
  }

  bool goes_on(const Transfer& last, const Transfer& next) const {
    return last.source == next.source && last.destination == next.destination &&
           last.kind == next.kind && last.line.end == next.line.begin &&
           layout_.home(last.line.begin) == layout_.home(next.line.begin);
  }

  const TokenLayout& layout_;
  const PlanningCosts& costs_;
  const PassCosts& pass_;
  const std::vector<Transfer>& transfers_;
  const size_t ranks_;
  int ranks_per_group_ = 1;
  SharedRows shared_;
  std::vector<std::vector<Transfer>> alone_;  // one round: rows with one taker, from their homes
  RoundLoads direct_loads_;                   // theirs
  // Bytes between nodes of each rank.
  std::vector<double> alone_sent_;
  std::vector<double> alone_received_;
  std::vector<double> copied_bytes_;  // of shared rows, once to each node
  double mean_bytes_ = 0;
  double most_bytes_ = 0;
  double goal_bytes_ = 0;
  // Of the ways found last.
  std::vector<double> sent_;
  std::vector<double> received_;
  std::vector<double> share_of_copies_;  // that each home sends itself
  std::vector<RoundLoads> loads_;
  bool is_recorded_ = false;
  std::vector<std::vector<Transfer>> rounds_;
  // Reused for every stretch.
  std::vector<Transfer> of_kind_;
  std::vector<Group> groups_;
};

// The back leg as the mirror of the out leg, for the kinds that come back.
std::vector<Round> mirrored(const std::vector<Round>& out, Direction direction) {
  std::vector<Round> back;
  for (auto round = out.rbegin(); round != out.rend(); ++round) {
    Round mirror;
    for (const Transfer& transfer : round->transfers) {
      if (direction == Direction::kForward && transfer.kind == RowKind::kKeyValue) continue;
      mirror.transfers.push_back(
          {transfer.destination, transfer.source, transfer.kind, transfer.line, false});
    }
    Relays::sort_for_the_wire(&mirror.transfers);
    if (!mirror.transfers.empty()) back.push_back(std::move(mirror));
  }
  return back;
}

}  // namespace

bool relay_rows(const TokenLayout& layout, const PlanningCosts& costs, AttentionPlan* plan) {
  if (plan->out.size() != 1) return false;
  const double before_s = late_s(*plan, costs);
  Relays relays(layout, costs, *plan);
  if (!relays.has_hot_senders() && before_s <= 0) return false;
  if (!relays.run()) return false;
  std::vector<Round> out = relays.rounds();
  std::vector<Round> back = mirrored(out, plan->direction);
  plan->out.swap(out);
  plan->back.swap(back);
  // Partial results stay partial, whichever way they go.
  const bool any_partial =
      !back.empty() && std::any_of(back.front().transfers.begin(), back.front().transfers.end(),
                                   [](const Transfer& transfer) { return transfer.partial; });
  if (any_partial) mark_partial_transfers(layout, plan);
  if (late_s(*plan, costs) > before_s) {
    plan->out.swap(out);
    plan->back.swap(back);
    return false;
  }
  delay_late_tasks(layout, plan);
  return true;
}

}  // namespace longspan
