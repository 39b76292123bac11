#include "planner/shared_rows.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/random.h"

namespace longspan {
namespace {

TEST(SharedRows, CutsWhereTheTakersChange) {
  const std::vector<Transfer> transfers = {{0, 3, RowKind::kKeyValue, {0, 900}, false},
                                           {0, 5, RowKind::kKeyValue, {0, 900}, false},
                                           {0, 8, RowKind::kKeyValue, {0, 400}, false},
                                           {0, 8, RowKind::kKeyValue, {950, 990}, false}};
  SharedRows shared;
  std::vector<Transfer> rest;
  shared.split(transfers, 1, &rest);
  ASSERT_EQ(shared.stretches().size(), 2u);
  const auto takers = [&](size_t idx) {
    const auto span = shared.takers(shared.stretches()[idx]);
    return std::vector<int>(span.begin(), span.end());
  };
  EXPECT_EQ(shared.stretches()[0].line, Range({0, 400}));
  EXPECT_EQ(takers(0), std::vector<int>({3, 5, 8}));
  EXPECT_EQ(shared.stretches()[1].line, Range({400, 900}));
  EXPECT_EQ(takers(1), std::vector<int>({3, 5}));
  EXPECT_EQ(rest, std::vector<Transfer>{transfers[3]});
}

TEST(SharedRows, EveryTakerKeepsItsRows) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    RandomStream random(seed, "shared rows");
    std::vector<Transfer> transfers;
    std::map<std::pair<int, int64_t>, int> wanted;  // (taker, row)
    for (int taker = 1; taker < 8; ++taker) {
      for (int64_t at = random.below(40) == 0 ? 60 : 0; at < 60;) {
        const int64_t begin = at + random.between(0, 10);
        const int64_t end = begin + random.between(1, 30);
        transfers.push_back({0, taker, RowKind::kQuery, {begin, end}, false});
        for (int64_t row = begin; row < end; ++row) ++wanted[{taker, row}];
        at = end;
      }
    }
    const int64_t least_rows = random.between(1, 6);
    SharedRows shared;
    std::vector<Transfer> rest;
    shared.split(transfers, least_rows, &rest);
    std::map<std::pair<int, int64_t>, int> got;
    for (const Transfer& transfer : rest) {
      for (int64_t row = transfer.line.begin; row < transfer.line.end; ++row) {
        ++got[{transfer.destination, row}];
      }
    }
    for (const SharedStretch& stretch : shared.stretches()) {
      const auto takers = shared.takers(stretch);
      EXPECT_GE(takers.size(), 2u) << "seed " << seed;
      EXPECT_TRUE(std::is_sorted(takers.begin(), takers.end())) << "seed " << seed;
      EXPECT_GE(stretch.line.size(), least_rows) << "seed " << seed;
      for (const int taker : takers) {
        for (int64_t row = stretch.line.begin; row < stretch.line.end; ++row) {
          ++got[{taker, row}];
        }
      }
    }
    ASSERT_EQ(got, wanted) << "seed " << seed;
  }
}

}  // namespace
}  // namespace longspan
