#include "planner/random_routes.h"

#include <limits>
#include <set>
#include <utility>

#include "planner/held_rows.h"

namespace longspan {
namespace {

struct Hop {
  size_t source = 0;
  size_t destination = 0;
  int round = 0;
  bool is_relay = false;  // the destination has no use for the rows but to pass them on
};

// Drops hops to relays that pass nothing on. A relay's own hop stands before those it feeds.
std::vector<Hop> without_idle_relays(const std::vector<Hop>& hops) {
  std::set<size_t> passing;
  std::vector<Hop> useful;
  for (auto hop = hops.rbegin(); hop != hops.rend(); ++hop) {
    if (hop->is_relay && !passing.contains(hop->destination)) continue;
    passing.insert(hop->source);
    useful.push_back(*hop);
  }
  return useful;
}

Transfer transfer_of(const Range& line, RowKind kind, size_t source, size_t destination) {
  return {static_cast<int>(source), static_cast<int>(destination), kind, line, false};
}

}  // namespace

void RandomRoutes::route(AttentionPlan* plan) {
  plan->out.resize(static_cast<size_t>(random_.between(1, options_.max_rounds)));
  plan->back.resize(static_cast<size_t>(random_.between(1, options_.max_rounds)));
  for (const RowKind kind : {RowKind::kQuery, RowKind::kKeyValue}) {
    route_out(*plan, kind, &plan->out);
  }
  for (const RowKind kind : result_kinds(plan->direction)) route_back(*plan, kind, &plan->back);
  finish_plan(layout_, plan);
  for (Round& round : plan->out) join_neighbours(&round);
  for (Round& round : plan->back) join_neighbours(&round);
  mark_partial_transfers(layout_, plan);
  for (Round& round : plan->back) {
    for (Transfer& transfer : round.transfers) {
      if (chance(0.1)) transfer.partial = true;
    }
  }
}

// Atoms cover the rows that some rank needs (where `needs` is given) or holds.
std::vector<RandomRoutes::Atom> RandomRoutes::cut_into_atoms(
    const std::vector<std::vector<Range>>& holds, const std::vector<std::vector<Range>>& needs) {
  std::set<int64_t> cuts;
  std::vector<Range> all;
  for (const auto* lists : {&holds, &needs}) {
    for (const std::vector<Range>& list : *lists) {
      for (const Range& range : list) cuts.insert({range.begin, range.end});
      if (needs.empty() || lists == &needs) all.insert(all.end(), list.begin(), list.end());
    }
  }
  std::vector<Atom> atoms;
  for (const Range& range : normalize(std::move(all))) {
    if (range.size() >= 2) cuts.insert(random_.between(range.begin, range.end));
    for (const auto& [home, part] : layout_.split_by_home(range)) {
      for (int64_t at = part.begin; at < part.end;) {
        const auto next = cuts.upper_bound(at);
        const int64_t end = next == cuts.end() ? part.end : std::min(part.end, *next);
        Atom atom{{at, end}, home.rank, {}, {}};
        for (const auto& list : holds) atom.holds.push_back(covers(list, atom.line));
        for (const auto& list : needs) atom.needs.push_back(covers(list, atom.line));
        atoms.push_back(std::move(atom));
        at = end;
      }
    }
  }
  return atoms;
}

void RandomRoutes::route_out(const AttentionPlan& plan, RowKind kind, std::vector<Round>* rounds) {
  std::vector<std::vector<Range>> holds;
  std::vector<std::vector<Range>> needs;
  for (size_t rank = 0; rank < plan.servers.size(); ++rank) {
    holds.push_back(rows_held_at_start(layout_, plan, static_cast<int>(rank), kind));
    needs.push_back(subtract(buffer_rows(plan.servers[rank], kind), holds.back()));
  }
  for (const Atom& atom : cut_into_atoms(holds, needs)) send_out(atom, kind, rounds);
}

void RandomRoutes::send_out(const Atom& atom, RowKind kind, std::vector<Round>* rounds) {
  constexpr int kNever = std::numeric_limits<int>::max();
  const auto num_rounds = static_cast<int>(rounds->size());
  std::vector<int> held_from(atom.holds.size(), kNever);  // rounds until the rank holds the rows
  std::vector<std::pair<size_t, bool>> receivers;         // (rank, is_relay): relays first
  for (const bool relays : {true, false}) {
    for (const int64_t idx : random_.permutation(static_cast<int64_t>(atom.holds.size()))) {
      const auto rank = static_cast<size_t>(idx);
      if (atom.holds[rank]) held_from[rank] = 0;
      if (atom.holds[rank] || atom.needs[rank] == relays) continue;
      if (!relays || chance(options_.relay_probability)) receivers.emplace_back(rank, relays);
    }
  }
  std::vector<Hop> hops;
  for (const auto& [rank, is_relay] : receivers) {
    std::vector<size_t> sources;
    for (size_t source = 0; source < held_from.size(); ++source) {
      if (held_from[source] < num_rounds) sources.push_back(source);
    }
    const size_t source = pick(sources);
    const auto round = static_cast<int>(random_.between(held_from[source], num_rounds - 1));
    held_from[rank] = round + 1;
    hops.push_back({source, rank, round, is_relay});
  }
  for (const Hop& hop : without_idle_relays(hops)) {
    (*rounds)[static_cast<size_t>(hop.round)].transfers.push_back(
        transfer_of(atom.line, kind, hop.source, hop.destination));
  }
}

void RandomRoutes::route_back(const AttentionPlan& plan, RowKind kind, std::vector<Round>* rounds) {
  std::vector<std::vector<Range>> holds;
  for (const ServerPlan& server : plan.servers) holds.push_back(buffer_rows(server, kind));
  for (Atom& atom : cut_into_atoms(holds, {})) send_back(std::move(atom), kind, rounds);
}

void RandomRoutes::send_back(Atom atom, RowKind kind, std::vector<Round>* rounds) {
  const auto home = static_cast<size_t>(atom.home);
  for (size_t round = 0; round < rounds->size(); ++round) {
    const bool is_last = round + 1 == rounds->size();
    std::vector<size_t> senders;
    std::vector<size_t> others;  // who sends a row in a round does not receive it in that round
    for (size_t rank = 0; rank < atom.holds.size(); ++rank) {
      const double probability = is_last ? (rank == home ? 0.0 : 1.0) : (rank == home ? 0.05 : 0.5);
      (atom.holds[rank] && chance(probability) ? senders : others).push_back(rank);
    }
    if (others.empty()) continue;
    for (const size_t sender : senders) {
      const bool straight =
          is_last || (std::ranges::count(others, home) > 0 && !chance(options_.relay_probability));
      const size_t destination = straight ? home : pick(others);
      (*rounds)[round].transfers.push_back(transfer_of(atom.line, kind, sender, destination));
      atom.holds[sender] = false;
      atom.holds[destination] = true;
    }
  }
}

// Most neighbouring atoms with the same way become one transfer, inside one home piece.
void RandomRoutes::join_neighbours(Round* round) {
  std::vector<Transfer> joined;
  for (const Transfer& transfer : round->transfers) {
    if (!joined.empty() && chance(0.8)) {
      Transfer& last = joined.back();
      Transfer next = last;
      next.line = transfer.line;
      if (next == transfer && last.line.end == transfer.line.begin &&
          layout_.home(last.line.begin) == layout_.home(transfer.line.begin)) {
        last.line.end = transfer.line.end;
        continue;
      }
    }
    joined.push_back(transfer);
  }
  round->transfers = std::move(joined);
}

}  // namespace longspan
