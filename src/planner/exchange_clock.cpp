#include "planner/exchange_clock.h"

#include <algorithm>

namespace longspan {
namespace {

double transfer_s(const LinkClass& link, double bytes, int64_t messages) {
  if (messages == 0) return 0;
  const double on_the_wire_s = link.bytes_per_s > 0 ? bytes / link.bytes_per_s : 0;
  return link.latency_s + static_cast<double>(messages) * link.message_overhead_s + on_the_wire_s;
}

}  // namespace

ExchangeClock::ExchangeClock(const ServerLinks& links, int num_ranks)
    : links_(links),
      flows_(static_cast<size_t>(num_ranks)),
      traffic_(static_cast<size_t>(num_ranks)),
      node_(static_cast<size_t>(num_ranks)) {
  for (int rank = 0; rank < num_ranks; ++rank) {
    node_[static_cast<size_t>(rank)] = rank / links.servers_per_node;
  }
}

void ExchangeClock::add(int source, int destination, double bytes) {
  const bool starts_message = source != last_source_ || destination != last_destination_;
  const int64_t messages = starts_message ? 1 : 0;
  last_source_ = source;
  last_destination_ = destination;
  const bool same_node =
      node_[static_cast<size_t>(source)] == node_[static_cast<size_t>(destination)];
  const size_t link = same_node ? 0 : 1;
  Flow& sent = flows_[static_cast<size_t>(source)][kSent][link];
  sent.bytes += bytes;
  sent.messages += messages;
  Flow& received = flows_[static_cast<size_t>(destination)][kReceived][link];
  received.bytes += bytes;
  received.messages += messages;
}

void ExchangeClock::end_round() {
  double round_s = 0;
  bool sending = false;
  for (size_t rank = 0; rank < flows_.size(); ++rank) {
    RankFlows& flows = flows_[rank];
    for (const Side side : {kSent, kReceived}) {
      const auto& [inside, between] = flows[side];
      const double slower_s =
          std::max(transfer_s(links_.inside_node, inside.bytes, inside.messages),
                   transfer_s(links_.between_nodes, between.bytes, between.messages));
      if (slower_s <= round_s) continue;
      round_s = slower_s;
      sending = side == kSent;
    }
    LegTraffic& traffic = traffic_[rank];
    const auto& [sent, received] = flows;
    traffic.sent_bytes += sent[0].bytes + sent[1].bytes;
    traffic.received_bytes += received[0].bytes + received[1].bytes;
    traffic.sent_between_nodes_bytes += sent[1].bytes;
    traffic.received_between_nodes_bytes += received[1].bytes;
    traffic.sent_messages += sent[0].messages + sent[1].messages;
    flows = {};
  }
  last_source_ = last_destination_ = -1;
  seconds_ += round_s;
  if (round_s > slowest_round_s_) {
    slowest_round_s_ = round_s;
    bound_by_sending_ = sending;
  }
}

}  // namespace longspan
