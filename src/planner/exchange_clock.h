// How long the exchange of one leg takes, and what each rank sends and receives in it.
//
//   ExchangeClock clock(costs.links, layout.num_ranks());
//   for (const Round& round : plan.out) {
//     for (const Transfer& transfer : round.transfers) clock.add(source, destination, bytes);
//     // or, for all transfers between two ranks: clock.start_message(...).add(bytes)
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
  struct Flow {
    double bytes = 0;
    int64_t messages = 0;
  };

  // What a rank sends to another in a round.
  class Message {
   public:
    Message(Flow* sent, Flow* received) : sent_(sent), received_(received) {
      ++sent_->messages;
      ++received_->messages;
    }
    void add(double bytes) {
      sent_->bytes += bytes;
      received_->bytes += bytes;
    }

   private:
    Flow* sent_;
    Flow* received_;
  };

  ExchangeClock(const ServerLinks& links, int num_ranks);

  // Valid until the round ends.
  Message start_message(int source, int destination) {
    const auto from = static_cast<size_t>(source);
    const auto to = static_cast<size_t>(destination);
    const size_t link = node_[from] == node_[to] ? 0 : 1;
    return {&flows_[from][kSent][link], &flows_[to][kReceived][link]};
  }
  void add(int source, int destination, double bytes);
  void end_round();

  double seconds() const { return seconds_; }
  // Whether the slowest rank of the slowest round waits for what it sends.
  bool is_bound_by_sending() const { return bound_by_sending_; }
  // Of all rounds so far.
  const LegTraffic& traffic(int rank) const { return traffic_[static_cast<size_t>(rank)]; }

 private:
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
