// Hybrid models: any layout computes what one rank in one piece computes, choices included.
//
// As layout_equality_test.cpp, for glm5_next and kimi_linear: linear and sparse attention over
// chunks and ranks, residual streams, experts spread over groups, their tokens in chunks of many
// sizes, under skewed routing. Every pair of values occurs.
#include "layout_equality.h"

namespace longspan {
namespace {

Case to_case(const std::vector<int>& values, uint64_t seed) {
  constexpr int64_t kPairs[] = {1 << 20, 64, 16};
  Case c;
  c.seed = seed;
  c.family = values[0] == 0 ? ModelFamily::kGlm5Next : ModelFamily::kKimiLinear;
  c.ranks = kRankCounts[values[1]];
  c.chunks = kChunkCounts[values[2]];
  c.band = values[3] == 2 ? c.chunks : values[3] + 1;
  std::tie(c.stored_mode, c.inner_mode) = kModes[values[4]];
  c.shard_group = group_of(c.ranks, values[5]);
  c.expert_group = group_of(c.ranks, values[6]);
  c.expert_pairs = kPairs[values[7]];
  c.skew = static_cast<Skew>(values[8]);
  c.dedicated = values[9];
  c.micro_batches = values[10] + 1;
  return c;
}

const EqualitySuite kSuite({{"family", 2},
                            {"ranks", 5},
                            {"chunks", 4},
                            {"band", 3},
                            {"modes", 6},
                            {"shard group", 3},
                            {"expert group", 3},
                            {"pairs", 3},
                            {"skew", 4},
                            {"dedicated", 2},
                            {"micro-batches", 2}},
                           to_case);

class HybridEquality : public testing::TestWithParam<int> {};

TEST_P(HybridEquality, EqualsOneRank) {
  kSuite.expect_shard(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Shard, HybridEquality, testing::Range(0, kEqualityShards));

TEST(HybridEqualityCases, ShowEveryPairOfValues) {
  kSuite.expect_every_pair();
}

TEST(HybridEqualityCases, SameLayoutSameBits) {
  kSuite.expect_same_bits();
}

}  // namespace
}  // namespace longspan
