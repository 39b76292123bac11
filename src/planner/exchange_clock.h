// How long the exchange of one leg takes, and what each rank sends and receives in it.
//
//   ExchangeClock clock(costs.links, layout.num_ranks());
//   for (const Round& round : plan.out) {
//     for (const Transfer& transfer : round.transfers) clock.add(source, destination, bytes);
//     clock.end_round();
//   }
//   clock.seconds();
//
// A round takes as long as its slowest rank, direction and link class: the latency of the class,
// an overhead for each message, bytes over bandwidth. The two link classes and the two directions
// work side by side; rounds come one after the other. All bytes that one rank sends to another in
// a round are one message, so transfers between two ranks must be added one after the other (as a
// finished plan has them). A bandwidth of 0 stands for a link that is free. One thread.
#pragma once

#include <array>
#include <vector>

#include "planner/plan_prediction.h"

namespace longspan {

class ExchangeClock {
 public:
  ExchangeClock(const ServerLinks& links, int num_ranks);

  void add(int source, int destination, double bytes);
  void end_round();

  double seconds() const { return seconds_; }
  // Whether the slowest rank of the slowest round waits for what it sends.
  bool is_bound_by_sending() const { return bound_by_sending_; }
  // Of all rounds so far.
  const LegTraffic& traffic(int rank) const { return traffic_[static_cast<size_t>(rank)]; }

 private:
  struct Flow {
    double bytes = 0;
    int64_t messages = 0;
  };
  enum Side { kSent, kReceived };
  // Of one rank in the current round: [side][inside or between nodes].
  using RankFlows = std::array<std::array<Flow, 2>, 2>;

  ServerLinks links_;
  std::vector<RankFlows> flows_;
  std::vector<LegTraffic> traffic_;
  std::vector<int> node_;  // of each rank: no division for each transfer
  int last_source_ = -1;
  int last_destination_ = -1;
  double seconds_ = 0;
  double slowest_round_s_ = 0;
  bool bound_by_sending_ = false;
};

}  // namespace longspan
