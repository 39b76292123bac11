// What "equals one rank" means for a case of layout_case.h, in float64, and the suite of such cases
// that every kind of model runs.
//
//   expect_equals_one_rank(c);      // runs it in its layout and whole, compares loss and gradients
//   const EqualitySuite kSuite{{{"family", 2}, {"ranks", 5}, ...}, to_case};
//   kSuite.expect_shard(GetParam());           // cases [80 shard, 80 (shard + 1)), each by its
//   seed
//
// GoogleTest's main thread only.
#pragma once

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/sub.h>
#include <gtest/gtest.h>

#include <cmath>

#include "layout_case.h"
#include "pairwise_cases.h"

namespace longspan {

inline constexpr int kEqualityShards = 4;  // ctest runs them as separate programs
inline constexpr uint64_t kCasesPerShard = 80;

// Values of the dimensions that all suites have.
inline constexpr int kRankCounts[] = {1, 2, 3, 4, 8};
inline constexpr int kChunkCounts[] = {1, 2, 3, 5};
inline constexpr std::pair<StoredMode, StoredMode> kModes[] = {
    {StoredMode::kKeep, StoredMode::kKeep},
    {StoredMode::kLayerInputsAttention, StoredMode::kKeep},
    {StoredMode::kLayerInputs, StoredMode::kKeep},
    {StoredMode::kContextOnly, StoredMode::kKeep},
    {StoredMode::kContextOnly, StoredMode::kLayerInputsAttention},
    {StoredMode::kContextOnly, StoredMode::kLayerInputs},
};

// One, about half of them, all.
inline int group_of(int ranks, int value) {
  const int middle = ranks % 2 == 0 ? ranks / 2 : 1;
  return value == 0 ? 1 : value == 1 ? middle : ranks;
}

// Sums of at most a few thousand terms, reordered.
inline constexpr double kTolerance = 1e-10;

inline double tensor_norm(const at::Tensor& tensor) {
  return at::linalg_vector_norm(tensor, 2).item<double>();
}

inline void expect_equals_one_rank(const Case& c) {
  Case whole = c;
  whole.ranks = whole.chunks = whole.band = whole.shard_group = 1;
  whole.expert_group = 1;
  whole.expert_pairs = Case{}.expert_pairs;
  whole.dedicated = 0;
  whole.stored_mode = StoredMode::kKeep;
  whole.plans = Plans::kPlanner;
  const Outcome expected = run_case(whole);
  const Outcome found = run_case(c);
  EXPECT_NEAR(found.loss, expected.loss, kTolerance * std::abs(expected.loss)) << describe(c);
  // A gradient that vanishes in exact arithmetic (queries that see one key only) is rounding noise
  // of the others: it is compared on the scale of 1e-4 of the whole gradient's norm.
  double square_sum = 0;
  for (const auto& [name, reference] : expected.gradients)
    square_sum += tensor_norm(reference) * tensor_norm(reference);
  const double floor = std::max(1e-4 * std::sqrt(square_sum), 1e-300);
  for (const auto& [name, reference] : expected.gradients) {
    const double error = tensor_norm(at::sub(found.gradients.at(name), reference)) /
                         std::max(tensor_norm(reference), floor);
    EXPECT_LE(error, kTolerance) << name << ", " << describe(c);
  }
}

class EqualitySuite {
 public:
  using ToCase = Case (*)(const std::vector<int>& values, uint64_t seed);

  EqualitySuite(std::vector<Dimension> dimensions, ToCase to_case)
      : dimensions_(std::move(dimensions)), to_case_(to_case) {}

  void expect_shard(int shard) const {
    PairwiseCases cases = all_cases();
    const uint64_t first = kCasesPerShard * static_cast<uint64_t>(shard);
    for (uint64_t seed = 0; seed < first + kCasesPerShard; ++seed) {
      const Case c = to_case_(cases.next(seed), seed);
      if (seed >= first) expect_equals_one_rank(c);
      if (testing::Test::HasFailure()) FAIL() << describe(c);
    }
  }

  void expect_every_pair() const {
    PairwiseCases cases = all_cases();
    for (uint64_t seed = 0; seed < kCasesPerShard * kEqualityShards; ++seed) cases.next(seed);
    EXPECT_EQ(cases.uncovered(), std::vector<std::string>{});
  }

  // Two runs of one layout give the same bits.
  void expect_same_bits() const {
    PairwiseCases cases = all_cases();
    for (uint64_t seed = 0; seed < 12; ++seed) {
      const Case c = to_case_(cases.next(seed), seed);
      const Outcome first = run_case(c);
      const Outcome second = run_case(c);
      EXPECT_EQ(first.loss, second.loss) << describe(c);
      for (const auto& [name, gradient] : first.gradients) {
        EXPECT_TRUE(gradient.equal(second.gradients.at(name))) << name << ", " << describe(c);
      }
    }
  }

 private:
  // Not all ranks are dedicated servers.
  PairwiseCases all_cases() const {
    return {dimensions_, [to_case = to_case_](const std::vector<int>& values) {
              const Case c = to_case(values, 0);
              return c.dedicated < c.ranks;
            }};
  }

  std::vector<Dimension> dimensions_;
  ToCase to_case_;
};

}  // namespace longspan
