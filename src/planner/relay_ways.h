// The ways that rows take from their homes to the ranks that need them, by way of each other.
//
//   RelayWays ways(layout, costs, direction, direct_transfers);
//   if ((ways.has_hot_senders() || exchange_is_late) && ways.find()) use(ways.rounds());
//
// Rows with one taker go straight. Of rows with several, the takers of a node share one copy: one
// of them, the one that received least so far, gets it from outside and passes it on inside. A home
// that would send more than the goal sends fewer copies, cut into parts, each to a few nodes
// whose takers send it to the others in a round between. The first goal is a little more than the
// mean rank's bytes, so that no rank stands out; if both legs together are then late by bytes
// alone, higher goals are tried, since a round between costs time of its own, and the least late
// ways are kept.
//
// One thread.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "planner/planning_costs.h"
#include "planner/relay_scratch.h"
#include "planner/round_loads.h"

namespace longspan {

class RelayWays {
 public:
  // A second in which the busiest rank sends counts as this many seconds of lateness.
  static constexpr double kPeakSeconds = 0.3;

  // `transfers`: one round in wire order; it and the scratch must outlive this.
  RelayWays(const TokenLayout& layout, const PlanningCosts& costs, Direction direction,
            const std::vector<Transfer>& transfers, RelayScratch* scratch);

  // Whether a rank sends much more than the mean, and long.
  bool has_hot_senders() const { return most_bytes_ > goal_bytes_; }

  // Returns whether any rows take another way.
  bool find();

  // The out leg in wire order, neighbouring rows of one pair of ranks joined; transfers of shared
  // rows are marked partial, for the way back. Once, after find().
  std::vector<Round> rounds();

 private:
  // Rows that travel together.
  struct Parcel {
    RowKind kind = RowKind::kQuery;
    Range line;
    RoundLoads::Legs bytes;
  };
  using Group = RelayGroup;
  static constexpr size_t kRounds = RelayScratch::kRounds;

  double& sent(int rank) { return sent_[static_cast<size_t>(rank)]; }
  double& received(int rank) { return received_[static_cast<size_t>(rank)]; }
  int group(int rank) const { return group_of_[static_cast<size_t>(rank)]; }
  bool is_far(int one, int other) const { return group(one) != group(other); }
  double weight(RowKind kind, int64_t rows) const;
  double weight(const Transfer& transfer) const {
    return weight(transfer.kind, transfer.line.size());
  }

  void set_goal();
  double peak_s() const;
  bool has_relays() const { return !room_.best_hops[1].empty(); }
  void split();
  void split(size_t begin, size_t end, RowKind kind);
  void count_direct();
  double find_ways();
  void find_groups(const SharedStretch& stretch);
  void relay(const SharedStretch& stretch, const RelayTakers& takers);
  int64_t count_parts(const SharedStretch& stretch, int64_t copies) const;
  void relay_part(const SharedStretch& stretch, const Range& line, size_t copies);
  void pick_entry(double bytes, Group* group);
  void send_to(const Group& group, int source, const Parcel& parcel, size_t round);
  Parcel parcel_of(const SharedStretch& stretch, const Range& line) const;
  void send(int source, int destination, const Parcel& parcel, size_t round, RoundLoads::Link link);
  void add_load(const Transfer& transfer);
  void join_neighbours(std::vector<Transfer>* transfers) const;
  bool goes_on(const Transfer& last, const Transfer& next) const;

  const TokenLayout& layout_;
  const PlanningCosts& costs_;
  const PassCosts& pass_;
  const std::vector<Transfer>& transfers_;
  const size_t ranks_;
  std::vector<int> node_of_;
  std::vector<int> group_of_;
  RoundLoads::Link far_link_ = RoundLoads::kBetweenNodes;  // of two groups
  RelayScratch& room_;
  RoundLoads alone_loads_;
  const std::array<RoundLoads::Legs, 2> shared_row_bytes_;  // of a query row, of a key row
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
  std::array<RoundLoads, kRounds> loads_;
};

}  // namespace longspan
