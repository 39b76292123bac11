// Hybrid models: any layout computes what one rank in one piece computes, choices included.
//
// As layout_equality_test.cpp, for glm5_next and kimi_linear: linear and sparse attention over
// chunks and ranks, residual streams, experts spread over groups, their tokens in chunks of many
// sizes, under skewed routing. Every pair of values occurs.
#include "layout_equality.h"
#include "pairwise_cases.h"

namespace longspan {
namespace {

constexpr int kShards = 4;  // ctest runs them as separate programs
constexpr uint64_t kCasesPerShard = 80;

const std::vector<Dimension> kDimensions = {
    {"family", 2}, {"ranks", 5},       {"chunks", 4},       {"band", 3},
    {"modes", 6},  {"shard group", 3}, {"expert group", 3}, {"pairs", 3},
    {"skew", 4},   {"dedicated", 2},   {"micro-batches", 2}};

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
  constexpr int64_t kPairs[] = {1 << 20, 64, 16};
  Case c;
  c.seed = seed;
  c.family = values[0] == 0 ? ModelFamily::kGlm5Next : ModelFamily::kKimiLinear;
  c.ranks = kRanks[values[1]];
  c.chunks = kChunks[values[2]];
  c.band = values[3] == 2 ? c.chunks : values[3] + 1;
  std::tie(c.stored_mode, c.inner_mode) = kModes[values[4]];
  const int middle = c.ranks % 2 == 0 ? c.ranks / 2 : 1;
  const int groups[] = {1, middle, c.ranks};
  c.shard_group = groups[values[5]];
  c.expert_group = groups[values[6]];
  c.expert_pairs = kPairs[values[7]];
  c.skew = static_cast<Skew>(values[8]);
  c.dedicated = values[9];
  c.micro_batches = values[10] + 1;
  return c;
}

bool is_allowed(const std::vector<int>& values) {
  return to_case(values, 0).dedicated < to_case(values, 0).ranks;
}

class HybridEquality : public testing::TestWithParam<int> {};

TEST_P(HybridEquality, EqualsOneRank) {
  PairwiseCases cases(kDimensions, is_allowed);
  const uint64_t first = kCasesPerShard * static_cast<uint64_t>(GetParam());
  for (uint64_t seed = 0; seed < first + kCasesPerShard; ++seed) {
    const Case c = to_case(cases.next(seed), seed);
    if (seed >= first) expect_equals_one_rank(c);
    if (testing::Test::HasFailure()) FAIL() << describe(c);
  }
}

INSTANTIATE_TEST_SUITE_P(Shard, HybridEquality, testing::Range(0, kShards));

TEST(HybridEqualityCases, ShowEveryPairOfValues) {
  PairwiseCases cases(kDimensions, is_allowed);
  for (uint64_t seed = 0; seed < kCasesPerShard * kShards; ++seed) cases.next(seed);
  EXPECT_EQ(cases.uncovered(), std::vector<std::string>{});
}

// Two runs of one layout give the same bits.
TEST(HybridEqualityCases, SameLayoutSameBits) {
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
