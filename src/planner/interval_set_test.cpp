#include "planner/interval_set.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace longspan {
namespace {

// Against a plain array of flags, under random insertions and erasures.
TEST(IntervalSet, IsASetOfPositions) {
  constexpr int64_t kPositions = 60;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RandomStream random(seed, "interval set");
    IntervalSet set;
    std::vector<bool> flags(kPositions, false);
    for (int step = 0; step < 40; ++step) {
      Range range{random.between(0, kPositions), 0};
      range.end = random.between(range.begin, std::min(kPositions, range.begin + 20));
      const auto begin = flags.begin() + range.begin;
      const auto end = flags.begin() + range.end;
      EXPECT_EQ(set.contains(range), std::find(begin, end, false) == end) << "seed " << seed;
      EXPECT_EQ(set.intersects(range), std::find(begin, end, true) != end) << "seed " << seed;
      const bool add = random.below(2) == 0;
      add ? set.insert(range) : set.erase(range);
      std::fill(begin, end, add);
      std::vector<Range> expected;
      for (int64_t at = 0; at < kPositions; ++at) {
        if (flags[static_cast<size_t>(at)]) expected.push_back({at, at + 1});
      }
      ASSERT_EQ(set.ranges(), normalize(expected)) << "seed " << seed << " step " << step;
    }
  }
}

}  // namespace
}  // namespace longspan
