#include "planner/wire_order.h"

#include <algorithm>
#include <utility>

namespace longspan {
namespace {

// A stable sort of the transfers that `takes` by one of their ranks.
template <typename Takes>
std::vector<Transfer> counted_into_place(int num_ranks, const std::vector<Transfer>& transfers,
                                         int Transfer::*rank, const Takes& takes) {
  std::vector<size_t> next(static_cast<size_t>(num_ranks) + 1, 0);
  for (const Transfer& transfer : transfers) {
    if (takes(transfer)) ++next[static_cast<size_t>(transfer.*rank) + 1];
  }
  for (size_t idx = 1; idx < next.size(); ++idx) next[idx] += next[idx - 1];
  std::vector<Transfer> sorted(next.back());
  for (const Transfer& transfer : transfers) {
    if (takes(transfer)) sorted[next[static_cast<size_t>(transfer.*rank)]++] = transfer;
  }
  return sorted;
}

bool all(const Transfer&) {
  return true;
}

bool by_kind_and_line(const Transfer& a, const Transfer& b) {
  return a.kind != b.kind ? a.kind < b.kind : a.line.begin < b.line.begin;
}

}  // namespace

void sort_by_source(int num_ranks, std::vector<Transfer>* transfers) {
  *transfers = counted_into_place(num_ranks, *transfers, &Transfer::source, all);
}

void sort_for_the_wire(int num_ranks, std::vector<Transfer>* transfers) {
  *transfers = counted_into_place(num_ranks, *transfers, &Transfer::destination, all);
  sort_by_source(num_ranks, transfers);
  for (auto begin = transfers->begin(); begin != transfers->end();) {
    auto end = std::next(begin);
    while (end != transfers->end() && end->source == begin->source &&
           end->destination == begin->destination) {
      ++end;
    }
    if (!std::is_sorted(begin, end, by_kind_and_line)) std::sort(begin, end, by_kind_and_line);
    begin = end;
  }
}

std::vector<Round> mirrored(int num_ranks, Direction direction, const std::vector<Round>& out) {
  const bool keys_return = direction == Direction::kBackward;
  std::vector<Round> back;
  for (auto round = out.rbegin(); round != out.rend(); ++round) {
    std::vector<Transfer> transfers = counted_into_place(
        num_ranks, round->transfers, &Transfer::destination,
        [&](const Transfer& transfer) { return keys_return || transfer.kind == RowKind::kQuery; });
    if (transfers.empty()) continue;
    for (Transfer& transfer : transfers) std::swap(transfer.source, transfer.destination);
    back.push_back({std::move(transfers)});
  }
  return back;
}

}  // namespace longspan
