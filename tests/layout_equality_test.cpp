// Any layout computes what one rank in one piece computes: loss and every gradient, in float64.
//
// Random ragged batches over ranks, chunks, bands, stored and inner modes, in-place and dedicated
// servers, shard groups, micro-batches, and plans: the planner's, the home plan, and random valid
// ones with tiles, partial results and relays. Every pair of values occurs. Tolerance: float64 sums
// of at most a few thousand terms, reordered: 1e-10 relative per tensor.
#include "layout_equality.h"

namespace longspan {
namespace {

Case to_case(const std::vector<int>& values, uint64_t seed) {
  Case c;
  c.seed = seed;
  c.family = values[0] == 0 ? ModelFamily::kLlama : ModelFamily::kQwen3;
  c.tied = values[1] == 1;
  c.ranks = kRankCounts[values[2]];
  c.chunks = kChunkCounts[values[3]];
  c.band = values[4] == 2 ? c.chunks : values[4] + 1;
  std::tie(c.stored_mode, c.inner_mode) = kModes[values[5]];
  c.dedicated = values[6];
  c.shard_group = group_of(c.ranks, values[7]);
  c.plans = static_cast<Plans>(values[8]);
  c.micro_batches = values[9] + 1;
  return c;
}

const EqualitySuite kSuite({{"family", 2},
                            {"tied", 2},
                            {"ranks", 5},
                            {"chunks", 4},
                            {"band", 3},
                            {"modes", 6},
                            {"dedicated", 3},
                            {"shard group", 3},
                            {"plans", 3},
                            {"micro-batches", 2}},
                           to_case);

class LayoutEquality : public testing::TestWithParam<int> {};

TEST_P(LayoutEquality, EqualsOneRank) {
  kSuite.expect_shard(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Shard, LayoutEquality, testing::Range(0, kEqualityShards));

TEST(LayoutEqualityCases, ShowEveryPairOfValues) {
  kSuite.expect_every_pair();
}

TEST(LayoutEqualityCases, SameLayoutSameBits) {
  kSuite.expect_same_bits();
}

}  // namespace
}  // namespace longspan
