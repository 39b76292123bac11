// Any layout computes what one rank in one piece computes: loss and every gradient, in float64.
//
// Random ragged batches over ranks, chunks, bands, stored and inner modes, in-place and dedicated
// servers, shard groups, micro-batches, and plans: the planner's, the home plan, and random valid
// ones with tiles, partial results and relays. Every pair of values occurs. Tolerance: float64 sums
// of at most a few thousand terms, reordered: 1e-10 relative per tensor.
#include <gtest/gtest.h>

#include "layout_equality.h"
#include "pairwise_cases.h"

namespace longspan {
namespace {

constexpr int kShards = 4;  // ctest runs them as separate programs
constexpr uint64_t kCasesPerShard = 80;

const std::vector<Dimension> kDimensions = {
    {"family", 2}, {"tied", 2},      {"ranks", 5},       {"chunks", 4}, {"band", 3},
    {"modes", 6},  {"dedicated", 3}, {"shard group", 3}, {"plans", 3},  {"micro-batches", 2}};

Case to_case(const std::vector<int>& values, uint64_t seed) {
  using Mode = StoredMode;
  constexpr int kRanks[] = {1, 2, 3, 4, 8};
  constexpr int kChunks[] = {1, 2, 3, 5};
  constexpr std::pair<Mode, Mode> kModes[] = {
      {Mode::kKeep, Mode::kKeep},
      {Mode::kLayerInputsAttention, Mode::kKeep},
      {Mode::kLayerInputs, Mode::kKeep},
      {Mode::kContextOnly, Mode::kKeep},
      {Mode::kContextOnly, Mode::kLayerInputsAttention},
      {Mode::kContextOnly, Mode::kLayerInputs},
  };
  Case c;
  c.seed = seed;
  c.family = values[0] == 0 ? ModelFamily::kLlama : ModelFamily::kQwen3;
  c.tied = values[1] == 1;
  c.ranks = kRanks[values[2]];
  c.chunks = kChunks[values[3]];
  c.band = values[4] == 2 ? c.chunks : values[4] + 1;
  std::tie(c.stored_mode, c.inner_mode) = kModes[values[5]];
  c.dedicated = values[6];
  const int middle = c.ranks % 2 == 0 ? c.ranks / 2 : 1;
  c.shard_group = values[7] == 0 ? 1 : values[7] == 1 ? middle : c.ranks;
  c.plans = static_cast<Plans>(values[8]);
  c.micro_batches = values[9] + 1;
  return c;
}

bool is_allowed(const std::vector<int>& values) {
  const Case c = to_case(values, 0);
  return c.dedicated < c.ranks;
}

class LayoutEquality : public testing::TestWithParam<int> {};

TEST_P(LayoutEquality, EqualsOneRank) {
  PairwiseCases cases(kDimensions, is_allowed);
  const uint64_t first = kCasesPerShard * static_cast<uint64_t>(GetParam());
  for (uint64_t seed = 0; seed < first + kCasesPerShard; ++seed) {
    const Case c = to_case(cases.next(seed), seed);
    if (seed >= first) expect_equals_one_rank(c);
    if (testing::Test::HasFailure()) FAIL() << describe(c);
  }
}

INSTANTIATE_TEST_SUITE_P(Shard, LayoutEquality, testing::Range(0, kShards));

TEST(LayoutEqualityCases, ShowEveryPairOfValues) {
  PairwiseCases cases(kDimensions, is_allowed);
  for (uint64_t seed = 0; seed < kCasesPerShard * kShards; ++seed) cases.next(seed);
  EXPECT_EQ(cases.uncovered(), std::vector<std::string>{});
}

// Two runs of one layout give the same bits.
TEST(LayoutEqualityCases, SameLayoutSameBits) {
  PairwiseCases cases(kDimensions, is_allowed);
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const Case c = to_case(cases.next(seed), seed);
    const Outcome first = run_case(c);
    const Outcome second = run_case(c);
    EXPECT_EQ(first.loss, second.loss) << describe(c);
    for (const auto& [name, gradient] : first.gradients) {
      EXPECT_TRUE(gradient.equal(second.gradients.at(name))) << name << ", " << describe(c);
    }
  }
}

}  // namespace
}  // namespace longspan
