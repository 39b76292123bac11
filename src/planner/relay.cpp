#include "planner/relay.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "planner/exchange_clock.h"
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
    double total = 0;
    for (const Transfer& transfer : transfers_) {
      sent(transfer.source) += weight(transfer);
      total += weight(transfer);
    }
    goal_bytes_ = kHotFactor * total / static_cast<double>(num_ranks);
  }

  // Returns whether any transfer changed its way.
  bool run() {
    bool changed = false;
    for (const auto& [begin, end] : hot_senders()) changed = relieve(begin, end) || changed;
    return changed;
  }

  int round(size_t idx) const { return rounds_[idx]; }

 private:
  double& sent(int rank) { return sent_bytes_[static_cast<size_t>(rank)]; }

  double weight(const Transfer& transfer) const {
    const bool query = transfer.kind == RowKind::kQuery;
    return static_cast<double>(transfer.line.size()) * (query ? bytes_.query_out : bytes_.key_out);
  }

  // The transfers of each hot sender (they are sorted by source), hottest first.
  std::vector<std::pair<size_t, size_t>> hot_senders() {
    std::vector<std::pair<size_t, size_t>> senders;
    for (size_t begin = 0; begin < transfers_.size();) {
      size_t end = begin;
      while (end < transfers_.size() && transfers_[end].source == transfers_[begin].source) ++end;
      if (sent(transfers_[begin].source) > goal_bytes_) senders.emplace_back(begin, end);
      begin = end;
    }
    std::stable_sort(senders.begin(), senders.end(), [&](const auto& one, const auto& other) {
      return sent(transfers_[one.first].source) > sent(transfers_[other.first].source);
    });
    return senders;
  }

  // The smallest transfers of the sender change their ways first, since the largest serve others
  // best.
  bool relieve(size_t begin, size_t end) {
    order_.resize(end - begin);
    for (size_t idx = begin; idx < end; ++idx) order_[idx - begin] = idx;
    std::sort(order_.begin(), order_.end(), [&](size_t one, size_t other) {
      const auto key = [&](size_t idx) {
        const Transfer& transfer = transfers_[idx];
        return std::tuple(transfer.line.size(), transfer.line.begin, transfer.destination);
      };
      return key(one) < key(other);
    });
    const int sender = transfers_[begin].source;
    bool changed = false;
    for (size_t at = 0; at + 1 < order_.size(); ++at) {
      if (sent(sender) <= goal_bytes_) return changed;
      changed = redirect(at) || changed;
    }
    return changed;
  }

  // Lets a rank that gets all rows of the transfer in the first round send them on, if it then
  // sends less than their home does now: one that relays already while it is not hot, since a relay
  // must itself be served by the home, otherwise the least busy.
  bool redirect(size_t at) {
    const size_t idx = order_[at];
    Transfer& transfer = transfers_[idx];
    if (relays_others_[idx]) return false;
    const double bytes = weight(transfer);
    const auto rank_of = [&](size_t holder) {
      const double holder_bytes = sent(transfers_[holder].destination);
      const bool fresh = !relays_others_[holder] || holder_bytes + bytes > goal_bytes_;
      return std::pair(fresh, holder_bytes);
    };
    size_t best = idx;
    for (const size_t holder : order_) {
      const Transfer& held = transfers_[holder];
      if (holder == idx || rounds_[holder] != 0 || held.kind != transfer.kind ||
          !held.line.contains(transfer.line)) {
        continue;
      }
      if (best == idx || rank_of(holder) < rank_of(best)) best = holder;
    }
    if (best == idx) return false;
    const int relay = transfers_[best].destination;
    if (sent(relay) + bytes >= sent(transfer.source)) return false;
    sent(transfer.source) -= bytes;
    sent(relay) += bytes;
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
  std::vector<size_t> order_;
  double goal_bytes_ = 0;
};

bool by_wire_order(const Transfer& a, const Transfer& b) {
  return std::tie(a.source, a.destination, a.kind, a.line.begin) <
         std::tie(b.source, b.destination, b.kind, b.line.begin);
}

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
    std::sort(mirror.transfers.begin(), mirror.transfers.end(), by_wire_order);
    if (!mirror.transfers.empty()) back.push_back(std::move(mirror));
  }
  return back;
}

double out_leg_s(const std::vector<Round>& leg, const RowBytes& bytes, const ServerLinks& links,
                 int num_ranks) {
  ExchangeClock clock(links, num_ranks);
  for (const Round& round : leg) {
    for (const Transfer& transfer : round.transfers) {
      const double row = transfer.kind == RowKind::kQuery ? bytes.query_out : bytes.key_out;
      clock.add(transfer.source, transfer.destination,
                static_cast<double>(transfer.line.size()) * row);
    }
    clock.end_round();
  }
  return clock.seconds();
}

double back_leg_s(const std::vector<Round>& leg, const RowBytes& bytes, const ServerLinks& links,
                  int num_ranks) {
  ExchangeClock clock(links, num_ranks);
  for (const Round& round : leg) {
    for (const Transfer& transfer : round.transfers) {
      const bool query = transfer.kind == RowKind::kQuery;
      const double row = transfer.partial
                             ? (query ? bytes.query_back_partial : bytes.key_back_partial)
                             : (query ? bytes.query_back : bytes.key_back);
      clock.add(transfer.source, transfer.destination,
                static_cast<double>(transfer.line.size()) * row);
    }
    clock.end_round();
  }
  return clock.seconds();
}

}  // namespace

bool relay_rows(const TokenLayout& layout, const PlanningCosts& costs, AttentionPlan* plan) {
  if (plan->out.size() != 1) return false;
  const int ranks = layout.num_ranks();
  const PassCosts& pass = costs.pass(plan->direction);
  std::vector<Transfer> transfers = plan->out.front().transfers;
  Relays relays(pass.bytes, ranks, &transfers);
  if (!relays.run()) return false;
  std::vector<Round> out(2);
  for (size_t idx = 0; idx < transfers.size(); ++idx) {
    out[static_cast<size_t>(relays.round(idx))].transfers.push_back(transfers[idx]);
  }
  std::sort(out[1].transfers.begin(), out[1].transfers.end(), by_wire_order);
  std::vector<Round> back = mirrored(out, plan->direction);
  plan->out.swap(out);
  plan->back.swap(back);
  // Partial results stay partial, whichever way they go.
  const bool any_partial =
      !back.empty() && std::any_of(back.front().transfers.begin(), back.front().transfers.end(),
                                   [](const Transfer& transfer) { return transfer.partial; });
  if (any_partial) mark_partial_transfers(layout, plan);
  const auto is_slower = [&](double now_s, double before_s, double window_s) {
    return now_s > std::max(before_s, window_s);
  };
  if (is_slower(out_leg_s(plan->out, pass.bytes, costs.links, ranks),
                out_leg_s(out, pass.bytes, costs.links, ranks), pass.window.enter_s) ||
      is_slower(back_leg_s(plan->back, pass.bytes, costs.links, ranks),
                back_leg_s(back, pass.bytes, costs.links, ranks), pass.window.exit_s)) {
    plan->out.swap(out);
    plan->back.swap(back);
    return false;
  }
  delay_late_tasks(layout, plan);
  return true;
}

}  // namespace longspan
