#include "planner/relay.h"

#include <algorithm>
#include <utility>

#include "planner/held_rows.h"
#include "planner/launch_groups.h"

namespace longspan {
namespace {

// A rank that sends this much more than the mean is hot.
constexpr double kHotFactor = 1.25;

class Relays {
 public:
  Relays(const RowBytes& bytes, int num_ranks, std::vector<Transfer>* transfers)
      : bytes_(bytes),
        transfers_(*transfers),
        rounds_(transfers_.size(), 0),
        relays_others_(transfers_.size(), false),
        sent_bytes_(static_cast<size_t>(num_ranks)) {
    for (const Transfer& transfer : transfers_) sent(transfer.source) += weight(transfer);
    double total = 0;
    for (const double rank_bytes : sent_bytes_) total += rank_bytes;
    goal_bytes_ = kHotFactor * total / static_cast<double>(num_ranks);
  }

  // Returns whether any transfer changed its way.
  bool run() {
    bool changed = false;
    for (const std::vector<size_t>& group : hot_groups()) {
      for (const size_t idx : group) {
        if (sent(transfers_[idx].source) <= goal_bytes_) break;
        changed = redirect(group, idx) || changed;
      }
    }
    return changed;
  }

  int round(size_t idx) const { return rounds_[idx]; }

 private:
  double& sent(int rank) { return sent_bytes_[static_cast<size_t>(rank)]; }

  double weight(const Transfer& transfer) const {
    const bool query = transfer.kind == RowKind::kQuery;
    return static_cast<double>(transfer.line.size()) * (query ? bytes_.query_out : bytes_.key_out);
  }

  // The transfers of each hot sender, hottest first; of a sender the smallest first, since the
  // largest serve others best.
  std::vector<std::vector<size_t>> hot_groups() {
    std::vector<size_t> order;
    for (size_t idx = 0; idx < transfers_.size(); ++idx) {
      if (sent(transfers_[idx].source) > goal_bytes_) order.push_back(idx);
    }
    std::sort(order.begin(), order.end(), [&](size_t one, size_t other) {
      const Transfer& a = transfers_[one];
      const Transfer& b = transfers_[other];
      if (a.source != b.source) {
        const double hot = sent(a.source);
        const double hotter = sent(b.source);
        return hot != hotter ? hot > hotter : a.source < b.source;
      }
      if (a.line.size() != b.line.size()) return a.line.size() < b.line.size();
      return std::pair(a.line.begin, a.destination) < std::pair(b.line.begin, b.destination);
    });
    std::vector<std::vector<size_t>> groups;
    for (size_t at = 0; at < order.size(); ++at) {
      const bool fresh =
          at == 0 || transfers_[order[at]].source != transfers_[order[at - 1]].source;
      if (fresh) groups.emplace_back();
      groups.back().push_back(order[at]);
    }
    return groups;
  }

  // Lets a rank that gets all rows of the transfer in the first round send them on, if it then
  // sends less than their home does now: one that relays already while it is not hot, since a relay
  // must itself be served by the home, otherwise the least busy.
  bool redirect(const std::vector<size_t>& group, size_t idx) {
    Transfer& transfer = transfers_[idx];
    if (relays_others_[idx]) return false;
    const auto rank_of = [&](size_t holder) {
      const double bytes = sent(transfers_[holder].destination);
      const bool fresh = !relays_others_[holder] || bytes + weight(transfer) > goal_bytes_;
      return std::pair(fresh, bytes);
    };
    size_t best = idx;
    for (const size_t other : group) {
      const Transfer& holder = transfers_[other];
      if (other == idx || rounds_[other] != 0 || holder.kind != transfer.kind ||
          !holder.line.contains(transfer.line)) {
        continue;
      }
      if (best == idx || rank_of(other) < rank_of(best)) best = other;
    }
    if (best == idx) return false;
    const int relay = transfers_[best].destination;
    if (sent(relay) + weight(transfer) >= sent(transfer.source)) return false;
    sent(transfer.source) -= weight(transfer);
    sent(relay) += weight(transfer);
    transfer.source = relay;
    rounds_[idx] = 1;
    relays_others_[best] = true;
    return true;
  }

  const RowBytes& bytes_;
  std::vector<Transfer>& transfers_;
  std::vector<int> rounds_;
  std::vector<bool> relays_others_;
  std::vector<double> sent_bytes_;
  double goal_bytes_ = 0;
};

// The back leg as the mirror of the out leg, for the kinds that come back.
std::vector<Round> mirrored(const std::vector<Round>& out, Direction direction) {
  const std::vector<RowKind> kinds = result_kinds(direction);
  std::vector<Round> back;
  for (auto round = out.rbegin(); round != out.rend(); ++round) {
    Round mirror;
    for (const Transfer& transfer : round->transfers) {
      if (std::find(kinds.begin(), kinds.end(), transfer.kind) == kinds.end()) continue;
      mirror.transfers.push_back(
          {transfer.destination, transfer.source, transfer.kind, transfer.line, false});
    }
    if (!mirror.transfers.empty()) back.push_back(std::move(mirror));
  }
  return back;
}

}  // namespace

void relay_rows(const TokenLayout& layout, const RowBytes& bytes, AttentionPlan* plan) {
  if (plan->out.size() != 1) return;
  std::vector<Transfer> transfers = plan->out.front().transfers;
  Relays relays(bytes, layout.num_ranks(), &transfers);
  if (!relays.run()) return;
  plan->out.assign(2, Round{});
  for (size_t idx = 0; idx < transfers.size(); ++idx) {
    plan->out[static_cast<size_t>(relays.round(idx))].transfers.push_back(transfers[idx]);
  }
  plan->back = mirrored(plan->out, plan->direction);
  group_by_arrival(layout, plan);
  finish_plan(layout, plan);
  mark_partial_transfers(layout, plan);
}

}  // namespace longspan
