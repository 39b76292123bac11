// What each rank sends and receives in one round of both legs: exchange time from bytes alone.
//
// Why: whoever weighs ways for rows asks often and needs no latencies; exchange_clock.h has the
// whole time of a plan that is made.
//
//   RoundLoads loads(costs.links, num_ranks);
//   loads.add(3, 9, RoundLoads::kInsideNode, {out_bytes, back_bytes});   // back: from 9 to 3
//   loads.seconds().out
//
// One thread.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "cost/cluster_spec.h"

namespace longspan {

class RoundLoads {
 public:
  struct Legs {
    double out = 0;
    double back = 0;
  };

  enum Link : size_t { kInsideNode, kBetweenNodes };

  RoundLoads(const ServerLinks& links, size_t num_ranks);

  void clear() { std::fill(flows_.begin(), flows_.end(), Flows()); }

  void add(int source, int destination, Link link, const Legs& bytes) {
    Legs& sent = flows_[static_cast<size_t>(source)][2 * link];
    Legs& received = flows_[static_cast<size_t>(destination)][2 * link + 1];
    sent.out += bytes.out;
    sent.back += bytes.back;
    received.out += bytes.out;
    received.back += bytes.back;
  }

  // Of the slowest rank, link class and side.
  Legs seconds() const;

 private:
  // Sent and received inside, then between nodes.
  using Flows = std::array<Legs, 4>;

  std::array<double, 2> bytes_per_s_;  // of each link
  std::vector<Flows> flows_;           // of each rank
};

}  // namespace longspan
