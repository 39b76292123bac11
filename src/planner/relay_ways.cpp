#include "planner/relay_ways.h"

#include <algorithm>
#include <utility>

#include "planner/wire_order.h"

namespace longspan {
namespace {

// A rank that sends this much more than the mean is hot, if that also takes this share of the time
// in which exchange hides.
constexpr double kHotFactor = 1.25;
constexpr double kHotWindowShare = 0.4;
// Higher goals, as shares of the most that any home would send.
constexpr double kPatience[] = {0.4, 0.6, 0.8, 1.0};
// Homes that send less than this share of the mean have nothing worth passing on.
constexpr double kLeastShare = 0.5;
// Transfers of fewer rows are those of short documents, which one rank takes.
constexpr int64_t kLeastSharedRows = 8 * kBlockTokens;
// Rows are not cut finer than this, nor into more parts; a stretch that is this share of the mean
// rank's bytes or less goes straight to all its takers.
constexpr int64_t kLeastRows = 2 * kBlockTokens;
constexpr double kLeastStretch = 1.0 / 2048;
constexpr int64_t kMostParts = 8;

}  // namespace

inline void RelayWays::send(int source, int destination, const Parcel& parcel, size_t round,
                            RoundLoads::Link link) {
  // Several take the rows, so results have several parts.
  room_.hops[round].push_back({source, destination, parcel.kind, parcel.line, true});
  loads_[round].add(source, destination, link, parcel.bytes);
}

RelayWays::RelayWays(const TokenLayout& layout, const PlanningCosts& costs, Direction direction,
                     const std::vector<Transfer>& transfers, RelayScratch* scratch)
    : layout_(layout),
      costs_(costs),
      pass_(costs.pass(direction)),
      transfers_(transfers),
      ranks_(static_cast<size_t>(layout.num_ranks())),
      node_of_(ranks_),
      group_of_(ranks_),
      room_(*scratch),
      alone_loads_(costs.links, ranks_),
      shared_row_bytes_{{{pass_.bytes.query_out, pass_.bytes.query_back_partial},
                         {pass_.bytes.key_out, pass_.bytes.key_back_partial}}},
      sent_(ranks_, 0.0),
      loads_{RoundLoads(costs.links, ranks_), RoundLoads(costs.links, ranks_),
             RoundLoads(costs.links, ranks_)} {
  const int per_node = costs.links.servers_per_node;
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    const auto idx = static_cast<size_t>(rank);
    node_of_[idx] = rank / per_node;
    group_of_[idx] = per_node < layout.num_ranks() ? node_of_[idx] : rank;
  }
  far_link_ = per_node < layout.num_ranks() ? RoundLoads::kBetweenNodes : RoundLoads::kInsideNode;
  for (const Transfer& transfer : transfers_) {
    if (is_far(transfer.source, transfer.destination)) sent(transfer.source) += weight(transfer);
  }
  set_goal();
}

// Of the leg that carries more.
double RelayWays::weight(RowKind kind, int64_t rows) const {
  const RowBytes& bytes = pass_.bytes;
  const double row = kind == RowKind::kQuery ? std::max(bytes.query_out, bytes.query_back_partial)
                                             : std::max(bytes.key_out, bytes.key_back_partial);
  return static_cast<double>(rows) * row;
}

void RelayWays::set_goal() {
  double total_bytes = 0;
  for (const double bytes : sent_) total_bytes += bytes;
  most_bytes_ = *std::max_element(sent_.begin(), sent_.end());
  mean_bytes_ = total_bytes / static_cast<double>(ranks_);
  const double window_s = std::max(pass_.window.enter_s, pass_.window.exit_s);
  const double hidden_bytes = window_s * costs_.links.between_nodes.bytes_per_s;
  goal_bytes_ = std::max(kHotFactor * mean_bytes_, kHotWindowShare * hidden_bytes);
}

// What the busiest home's sending counts, beside lateness.
double RelayWays::peak_s() const {
  const double bytes_per_s = costs_.links.between_nodes.bytes_per_s;
  return bytes_per_s > 0 ? kPeakSeconds * goal_bytes_ / bytes_per_s : 0;
}

bool RelayWays::find() {
  split();
  if (room_.shared.stretches().empty()) return false;
  count_direct();
  double late_s = find_ways();
  double best_s = late_s + peak_s();
  room_.best_hops.swap(room_.hops);
  if (late_s <= 0) return has_relays();
  for (const double patience : kPatience) {
    goal_bytes_ = patience * most_bytes_;
    // Higher goals have higher peaks.
    if (peak_s() >= best_s) break;
    late_s = find_ways();
    if (late_s + peak_s() < best_s) {
      best_s = late_s + peak_s();
      room_.best_hops.swap(room_.hops);
    }
    // Higher goals could not be better.
    if (late_s <= 0) break;
  }
  return has_relays();
}

std::vector<Round> RelayWays::rounds() {
  RelayScratch::Hops& hops = room_.best_hops;
  hops[0].insert(hops[0].end(), room_.alone.begin(), room_.alone.end());
  std::vector<Round> rounds;
  for (const std::vector<Transfer>& transfers : hops) {
    if (transfers.empty() && !rounds.empty()) continue;
    rounds.push_back({in_wire_order(layout_.num_ranks(), transfers)});
    join_neighbours(&rounds.back().transfers);
  }
  return rounds;
}

void RelayWays::join_neighbours(std::vector<Transfer>* transfers) const {
  if (transfers->empty()) return;
  size_t last = 0;
  for (size_t idx = 1; idx < transfers->size(); ++idx) {
    if (goes_on((*transfers)[last], (*transfers)[idx])) {
      (*transfers)[last].line.end = (*transfers)[idx].line.end;
      (*transfers)[last].partial |= (*transfers)[idx].partial;
    } else {
      (*transfers)[++last] = (*transfers)[idx];
    }
  }
  transfers->resize(last + 1);
}

// A transfer stays inside one home piece.
bool RelayWays::goes_on(const Transfer& last, const Transfer& next) const {
  if (last.line.end != next.line.begin || last.source != next.source ||
      last.destination != next.destination || last.kind != next.kind) {
    return false;
  }
  const Home home = layout_.home(last.line.begin);
  return layout_.piece(home.chunk, home.rank).contains(next.line.begin);
}

// Transfers of rows that one rank takes stay as they are; the others become stretches.
void RelayWays::split() {
  room_.shared.clear();
  room_.alone.clear();
  room_.alone.reserve(transfers_.size());
  for (size_t begin = 0; begin < transfers_.size();) {
    const Transfer& first = transfers_[begin];
    size_t end = begin;
    while (end < transfers_.size() && transfers_[end].source == first.source) ++end;
    if (sent(first.source) < kLeastShare * mean_bytes_) {
      room_.alone.insert(room_.alone.end(), transfers_.begin() + static_cast<std::ptrdiff_t>(begin),
                         transfers_.begin() + static_cast<std::ptrdiff_t>(end));
    } else {
      for (const RowKind kind : {RowKind::kQuery, RowKind::kKeyValue}) split(begin, end, kind);
    }
    begin = end;
  }
}

void RelayWays::split(size_t begin, size_t end, RowKind kind) {
  room_.of_kind.clear();
  for (size_t idx = begin; idx < end; ++idx) {
    const Transfer& transfer = transfers_[idx];
    if (transfer.kind != kind) continue;
    (transfer.line.size() < kLeastSharedRows ? room_.alone : room_.of_kind).push_back(transfer);
  }
  const auto rows = static_cast<int64_t>(kLeastStretch * mean_bytes_ / weight(kind, 1));
  room_.shared.split(room_.of_kind, std::max(kLeastRows, rows), &room_.alone);
}

// The takers of the home's own node are served by it; those of each other node form a group.
void RelayWays::find_groups(const SharedStretch& stretch) {
  const std::span<const int> all = room_.shared.takers(stretch);
  RelayTakers takers{{}, room_.groups.size(), room_.groups.size()};
  for (size_t begin = 0; begin < all.size();) {
    size_t end = begin;
    while (end < all.size() && group(all[end]) == group(all[begin])) ++end;
    if (is_far(stretch.home, all[begin])) {
      room_.groups.push_back({all.subspan(begin, end - begin), all[begin]});
    } else {
      takers.inside = all.subspan(begin, end - begin);
    }
    begin = end;
  }
  takers.end = room_.groups.size();
  room_.takers.push_back(takers);
}

// What goes straight to its only taker, and how many bytes each home would send to other nodes if
// each got its rows once.
void RelayWays::count_direct() {
  alone_sent_.assign(ranks_, 0.0);
  alone_received_.assign(ranks_, 0.0);
  for (const Transfer& transfer : room_.alone) {
    add_load(transfer);
    if (!is_far(transfer.source, transfer.destination)) continue;
    alone_sent_[static_cast<size_t>(transfer.source)] += weight(transfer);
    alone_received_[static_cast<size_t>(transfer.destination)] += weight(transfer);
  }
  copied_bytes_.assign(ranks_, 0.0);
  room_.takers.clear();
  room_.groups.clear();
  for (const SharedStretch& stretch : room_.shared.stretches()) {
    find_groups(stretch);
    const RelayTakers& takers = room_.takers.back();
    copied_bytes_[static_cast<size_t>(stretch.home)] +=
        static_cast<double>(takers.end - takers.begin) * weight(stretch.kind, stretch.line.size());
  }
  for (size_t rank = 0; rank < ranks_; ++rank) {
    sent_[rank] = alone_sent_[rank] + copied_bytes_[rank];
  }
  set_goal();
}

// Finds a way for all shared rows such that homes send `goal_bytes_` at most, if they can. Returns
// by how much the exchange is late then.
double RelayWays::find_ways() {
  received_ = alone_received_;
  share_of_copies_.assign(ranks_, 1.0);
  for (size_t rank = 0; rank < ranks_; ++rank) {
    sent_[rank] = alone_sent_[rank] + copied_bytes_[rank];
    if (sent_[rank] <= goal_bytes_) continue;
    share_of_copies_[rank] =
        std::max(0.0, goal_bytes_ - alone_sent_[rank]) / std::max(1.0, copied_bytes_[rank]);
    sent_[rank] = std::max(goal_bytes_, alone_sent_[rank]);
  }
  loads_[0] = alone_loads_;
  loads_[1].clear();
  loads_[2].clear();
  for (std::vector<Transfer>& hops : room_.hops) hops.clear();
  for (size_t idx = 0; idx < room_.takers.size(); ++idx) {
    relay(room_.shared.stretches()[idx], room_.takers[idx]);
  }
  RoundLoads::Legs seconds;
  for (const RoundLoads& round : loads_) {
    const RoundLoads::Legs legs = round.seconds();
    seconds.out += legs.out;
    seconds.back += legs.back;
  }
  return std::max(0.0, seconds.out - pass_.window.enter_s) +
         std::max(0.0, seconds.back - pass_.window.exit_s);
}

void RelayWays::relay(const SharedStretch& stretch, const RelayTakers& takers) {
  const Parcel parcel = parcel_of(stretch, stretch.line);
  for (const int taker : takers.inside) {
    send(stretch.home, taker, parcel, 0, RoundLoads::kInsideNode);
  }
  if (takers.begin == takers.end) return;
  std::vector<Group>& groups = room_.stretch_groups;
  const auto all = room_.groups.begin();
  groups.assign(all + static_cast<std::ptrdiff_t>(takers.begin),
                all + static_cast<std::ptrdiff_t>(takers.end));
  const auto far_groups = std::ssize(groups);
  const double share = share_of_copies_[static_cast<size_t>(stretch.home)];
  const auto copies = std::clamp<int64_t>(
      static_cast<int64_t>(share * static_cast<double>(far_groups)), 1, far_groups);
  const int64_t parts = count_parts(stretch, copies);
  const Range& line = stretch.line;
  for (int64_t part = 0; part < parts; ++part) {
    relay_part(
        stretch,
        {line.begin + line.size() * part / parts, line.begin + line.size() * (part + 1) / parts},
        static_cast<size_t>(copies));
  }
}

// So many that those who pass parts on do not become hot by it.
int64_t RelayWays::count_parts(const SharedStretch& stretch, int64_t copies) const {
  const auto left = static_cast<double>(std::ssize(room_.stretch_groups) - copies);
  if (left <= 0) return 1;
  const double passed_on_bytes = left * weight(stretch.kind, stretch.line.size());
  const double room_bytes = goal_bytes_ / 2 * static_cast<double>(copies);
  const double wanted =
      std::min(passed_on_bytes / std::max(1.0, room_bytes), static_cast<double>(kMostParts));
  const int64_t most = std::min({kMostParts, std::ssize(room_.stretch_groups) / copies,
                                 std::max<int64_t>(1, stretch.line.size() / kLeastRows)});
  return std::clamp<int64_t>(static_cast<int64_t>(wanted) + 1, 1, most);
}

void RelayWays::relay_part(const SharedStretch& stretch, const Range& line, size_t copies) {
  const double bytes = weight(stretch.kind, line.size());
  const Parcel parcel = parcel_of(stretch, line);
  const std::span<Group> groups = room_.stretch_groups;
  if (copies == groups.size()) {
    for (Group& group : groups) {
      pick_entry(bytes, &group);
      send_to(group, stretch.home, parcel, 0);
    }
    return;
  }
  for (Group& group : groups) pick_entry(bytes, &group);
  std::sort(groups.begin(), groups.end(), [](const Group& one, const Group& other) {
    return one.entry_sent_bytes != other.entry_sent_bytes
               ? one.entry_sent_bytes < other.entry_sent_bytes
               : one.entry < other.entry;
  });
  for (const Group& group : groups.first(copies)) send_to(group, stretch.home, parcel, 0);
  size_t next_source = 0;
  for (const Group& group : groups.subspan(copies)) {
    const int source = groups[next_source].entry;
    if (++next_source == copies) next_source = 0;
    sent(source) += bytes;
    send_to(group, source, parcel, 1);
  }
}

// The taker that received least so far.
void RelayWays::pick_entry(double bytes, Group* group) {
  int entry = group->takers.front();
  for (const int taker : group->takers.subspan(1)) {
    if (received(taker) < received(entry)) entry = taker;
  }
  group->entry = entry;
  group->entry_sent_bytes = sent(entry);
  received(entry) += bytes;
}

// To the entry from outside, and inside the node in the round after.
void RelayWays::send_to(const Group& group, int source, const Parcel& parcel, size_t round) {
  send(source, group.entry, parcel, round, far_link_);
  for (const int taker : group.takers) {
    if (taker != group.entry) {
      send(group.entry, taker, parcel, round + 1, RoundLoads::kInsideNode);
    }
  }
}

RelayWays::Parcel RelayWays::parcel_of(const SharedStretch& stretch, const Range& line) const {
  const RoundLoads::Legs& row = shared_row_bytes_[stretch.kind == RowKind::kQuery ? 0 : 1];
  const auto rows = static_cast<double>(line.size());
  return {stretch.kind, line, {rows * row.out, rows * row.back}};
}

// Of rows with one taker.
void RelayWays::add_load(const Transfer& transfer) {
  const RowBytes& bytes = pass_.bytes;
  const bool query = transfer.kind == RowKind::kQuery;
  const auto rows = static_cast<double>(transfer.line.size());
  const bool same_node = node_of_[static_cast<size_t>(transfer.source)] ==
                         node_of_[static_cast<size_t>(transfer.destination)];
  alone_loads_.add(transfer.source, transfer.destination,
                   same_node ? RoundLoads::kInsideNode : RoundLoads::kBetweenNodes,
                   {rows * (query ? bytes.query_out : bytes.key_out),
                    rows * (query ? bytes.query_back : bytes.key_back)});
}

}  // namespace longspan
