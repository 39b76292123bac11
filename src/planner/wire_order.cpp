#include "planner/wire_order.h"

#include <algorithm>
#include <utility>

namespace longspan {
namespace {

// Where the transfers that `takes` of each rank begin, once they are sorted by one of their ranks.
template <typename Takes>
std::vector<size_t> first_of_each(int num_ranks, const std::vector<Transfer>& transfers,
                                  int Transfer::*rank, const Takes& takes) {
  std::vector<size_t> first(static_cast<size_t>(num_ranks) + 1, 0);
  for (const Transfer& transfer : transfers) {
    if (takes(transfer)) ++first[static_cast<size_t>(transfer.*rank) + 1];
  }
  for (size_t idx = 1; idx < first.size(); ++idx) first[idx] += first[idx - 1];
  return first;
}

// A stable sort of the transfers that `takes` by one of their ranks, each changed by `as`.
template <typename Takes, typename As>
std::vector<Transfer> counted_into_place(int num_ranks, const std::vector<Transfer>& transfers,
                                         int Transfer::*rank, const Takes& takes, const As& as) {
  std::vector<size_t> next = first_of_each(num_ranks, transfers, rank, takes);
  std::vector<Transfer> sorted(next.back());
  for (const Transfer& transfer : transfers) {
    if (takes(transfer)) sorted[next[static_cast<size_t>(transfer.*rank)]++] = as(transfer);
  }
  return sorted;
}

bool all(const Transfer&) {
  return true;
}

std::vector<uint32_t> order_by_destination(int num_ranks, const std::vector<Transfer>& transfers) {
  std::vector<size_t> next = first_of_each(num_ranks, transfers, &Transfer::destination, all);
  std::vector<uint32_t> order(transfers.size());
  for (size_t idx = 0; idx < transfers.size(); ++idx) {
    order[next[static_cast<size_t>(transfers[idx].destination)]++] = static_cast<uint32_t>(idx);
  }
  return order;
}

bool by_kind_and_line(const Transfer& a, const Transfer& b) {
  return a.kind != b.kind ? a.kind < b.kind : a.line.begin < b.line.begin;
}

}  // namespace

void sort_by_source(int num_ranks, std::vector<Transfer>* transfers) {
  *transfers = counted_into_place(num_ranks, *transfers, &Transfer::source, all,
                                  [](const Transfer& transfer) { return transfer; });
}

std::vector<Transfer> in_wire_order(int num_ranks, const std::vector<Transfer>& transfers) {
  // By destination only their places: a transfer moves once.
  const std::vector<uint32_t> by_destination = order_by_destination(num_ranks, transfers);
  std::vector<size_t> next = first_of_each(num_ranks, transfers, &Transfer::source, all);
  std::vector<Transfer> sorted(transfers.size());
  for (const uint32_t idx : by_destination) {
    const Transfer& transfer = transfers[idx];
    sorted[next[static_cast<size_t>(transfer.source)]++] = transfer;
  }
  for (auto begin = sorted.begin(); begin != sorted.end();) {
    auto end = std::next(begin);
    bool is_in_order = true;
    for (; end != sorted.end() && end->source == begin->source &&
           end->destination == begin->destination;
         ++end) {
      is_in_order = is_in_order && by_kind_and_line(*std::prev(end), *end);
    }
    if (!is_in_order) std::sort(begin, end, by_kind_and_line);
    begin = end;
  }
  return sorted;
}

std::vector<Round> mirrored(int num_ranks, Direction direction, const std::vector<Round>& out) {
  const bool keys_return = direction == Direction::kBackward;
  std::vector<Round> back;
  for (auto round = out.rbegin(); round != out.rend(); ++round) {
    std::vector<Transfer> transfers = counted_into_place(
        num_ranks, round->transfers, &Transfer::destination,
        [&](const Transfer& transfer) { return keys_return || transfer.kind == RowKind::kQuery; },
        [](const Transfer& transfer) {
          Transfer reverse = transfer;
          std::swap(reverse.source, reverse.destination);
          return reverse;
        });
    if (transfers.empty()) continue;
    back.push_back({std::move(transfers)});
  }
  return back;
}

}  // namespace longspan
