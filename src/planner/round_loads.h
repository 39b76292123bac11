// What each rank sends and receives in one round of both legs: exchange time from bytes alone.
//
// Why: whoever weighs ways for rows asks often and needs no latencies; exchange_clock.h has the
// whole time of a plan that is made.
//
//   RoundLoads loads(costs.links, node_of_ranks);
//   loads.add(3, 9, out_bytes, back_bytes);        // in the back leg from 9 to 3
//   loads.seconds().out
//
// One thread.
#pragma once

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

  // `node_of_ranks` must outlive this.
  RoundLoads(const ServerLinks& links, const std::vector<int>& node_of_ranks);

  void add(int source, int destination, double out_bytes, double back_bytes) {
    const auto from = static_cast<size_t>(source);
    const auto to = static_cast<size_t>(destination);
    const size_t link = (*nodes_)[from] == (*nodes_)[to] ? 0 : 1;
    Legs& sent = flows_[from][2 * link];
    Legs& received = flows_[to][2 * link + 1];
    sent.out += out_bytes;
    sent.back += back_bytes;
    received.out += out_bytes;
    received.back += back_bytes;
  }

  // Of the slowest rank, link class and side.
  Legs seconds() const;

 private:
  const std::vector<int>* nodes_;
  std::array<double, 2> bytes_per_s_;       // inside and between nodes
  std::vector<std::array<Legs, 4>> flows_;  // sent and received inside, then between nodes
};

}  // namespace longspan
