#include "planner/round_loads.h"

#include <algorithm>

namespace longspan {

RoundLoads::RoundLoads(const ServerLinks& links, size_t num_ranks)
    : bytes_per_s_{links.inside_node.bytes_per_s, links.between_nodes.bytes_per_s},
      flows_(num_ranks) {}

RoundLoads::Legs RoundLoads::seconds() const {
  Legs slowest;
  for (const size_t link : {kInsideNode, kBetweenNodes}) {
    if (bytes_per_s_[link] <= 0) continue;
    Legs most;
    for (const Flows& flows : flows_) {
      for (const Legs& flow : {flows[2 * link], flows[2 * link + 1]}) {
        most.out = std::max(most.out, flow.out);
        most.back = std::max(most.back, flow.back);
      }
    }
    slowest.out = std::max(slowest.out, most.out / bytes_per_s_[link]);
    slowest.back = std::max(slowest.back, most.back / bytes_per_s_[link]);
  }
  return slowest;
}

}  // namespace longspan
