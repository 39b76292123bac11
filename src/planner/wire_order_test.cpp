#include "planner/wire_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "base/random.h"

namespace longspan {
namespace {

std::vector<Transfer> random_transfers(RandomStream& random, int ranks) {
  std::vector<Transfer> transfers(static_cast<size_t>(random.between(0, 60)));
  for (size_t idx = 0; idx < transfers.size(); ++idx) {
    const auto rank = [&] { return static_cast<int>(random.between(0, ranks - 1)); };
    const int64_t begin = random.between(0, 5);
    const RowKind kind = random.below(2) == 0 ? RowKind::kQuery : RowKind::kKeyValue;
    transfers[idx] = {rank(), rank(), kind, {begin, begin + 1}, false};
  }
  return transfers;
}

auto key(const Transfer& transfer) {
  return std::tuple(transfer.source, transfer.destination, transfer.kind, transfer.line.begin);
}

bool before(const Transfer& a, const Transfer& b) {
  return key(a) < key(b);
}

TEST(WireOrder, SortsAsAComparisonDoes) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    RandomStream random(seed, "wire order");
    const auto ranks = static_cast<int>(random.between(1, 9));
    std::vector<Transfer> transfers = random_transfers(random, ranks);
    std::vector<Transfer> expected = transfers;
    std::stable_sort(expected.begin(), expected.end(), before);
    transfers = in_wire_order(ranks, transfers);
    ASSERT_EQ(transfers, expected) << "seed " << seed;
  }
}

TEST(WireOrder, TheMirrorHasTheSameRowsInReverse) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    RandomStream random(seed, "mirror");
    const auto ranks = static_cast<int>(random.between(1, 9));
    std::vector<Round> out(static_cast<size_t>(random.between(1, 3)));
    std::vector<Round> expected;
    const auto direction = random.below(2) == 0 ? Direction::kForward : Direction::kBackward;
    for (Round& round : out) {
      round.transfers = random_transfers(random, ranks);
      round.transfers = in_wire_order(ranks, round.transfers);
      Round mirror;
      for (const Transfer& transfer : round.transfers) {
        if (direction == Direction::kForward && transfer.kind == RowKind::kKeyValue) continue;
        mirror.transfers.push_back(
            {transfer.destination, transfer.source, transfer.kind, transfer.line, false});
      }
      std::stable_sort(mirror.transfers.begin(), mirror.transfers.end(), before);
      if (!mirror.transfers.empty()) expected.insert(expected.begin(), std::move(mirror));
    }
    ASSERT_EQ(mirrored(ranks, direction, out), expected) << "seed " << seed;
  }
}

}  // namespace
}  // namespace longspan
