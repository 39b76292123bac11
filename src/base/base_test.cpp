#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/error.h"
#include "base/narrow.h"
#include "base/printable.h"
#include "base/random.h"
#include "base/range.h"

namespace longspan {
namespace {

TEST(Narrow, RefusesWhatDoesNotFit) {
  EXPECT_EQ(narrow<int32_t>(int64_t{7}), 7);
  EXPECT_THROW(narrow<int32_t>(int64_t{1} << 40), InternalError);
  EXPECT_THROW(narrow<uint32_t>(int64_t{-1}), InternalError);
}

// Set algebra on ranges against the same algebra on sets of single positions.
TEST(Range, AlgebraEqualsSets) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    RandomStream random(seed, "range algebra");
    const auto draw = [&] {
      std::vector<Range> ranges(random.below(6));
      for (Range& range : ranges) {
        range.begin = random.between(0, 40);
        range.end = range.begin + random.between(0, 10);
      }
      return ranges;
    };
    const auto positions = [](const std::vector<Range>& ranges) {
      std::set<int64_t> all;
      for (const Range& range : ranges) {
        for (int64_t at = range.begin; at < range.end; ++at) all.insert(at);
      }
      return all;
    };
    const auto a = draw();
    const auto b = draw();
    std::set<int64_t> difference;
    std::set<int64_t> common;
    for (const int64_t at : positions(a)) {
      (positions(b).contains(at) ? common : difference).insert(at);
    }
    EXPECT_EQ(positions(normalize(a)), positions(a)) << "seed " << seed;
    EXPECT_EQ(positions(subtract(normalize(a), normalize(b))), difference) << "seed " << seed;
    EXPECT_EQ(positions(intersect(normalize(a), normalize(b))), common) << "seed " << seed;
    EXPECT_EQ(total_size(normalize(a)), static_cast<int64_t>(positions(a).size()));
    for (const Range& range : a) EXPECT_TRUE(covers(normalize(a), range)) << "seed " << seed;
  }
}

TEST(RandomStream, IsKeyedAndUniform) {
  EXPECT_EQ(RandomStream(1, "a", 2).next(), RandomStream(1, "a", 2).next());
  EXPECT_NE(RandomStream(1, "a", 2).next(), RandomStream(1, "a", 3).next());
  EXPECT_NE(RandomStream(1, "a", 2).next(), RandomStream(1, "b", 2).next());
  RandomStream stream(3, "moments");
  double sum = 0;
  double square = 0;
  constexpr int kDraws = 100000;
  for (int draw = 0; draw < kDraws; ++draw) {
    const double value = stream.normal();
    sum += value;
    square += value * value;
  }
  EXPECT_NEAR(sum / kDraws, 0, 5 / std::sqrt(double{kDraws}));
  EXPECT_NEAR(square / kDraws, 1, 5 * std::sqrt(2.0 / kDraws));
  auto order = RandomStream(4, "order").permutation(100);
  std::sort(order.begin(), order.end());
  for (int64_t idx = 0; idx < 100; ++idx) EXPECT_EQ(order[static_cast<size_t>(idx)], idx);
}

TEST(Printable, ControlCharactersAreShownAndNotObeyed) {
  EXPECT_EQ(printable("a\x1b[31mb\rc\x7f\n\td"), "a\\x1b[31mb\\x0dc\\x7f\n\td");
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\xc2\x9b"
                      "1m"),
            "\\xc2\\x9b1m")
      << "the one-character form of ESC [";
  EXPECT_EQ(printable("caf\xc3\xa9 \xc2\xa0 caf\xe9 \xc2"), "caf\xc3\xa9 \xc2\xa0 caf\xe9 \xc2");
}

TEST(Error, AZeroByteDoesNotEndAMessage) {
  const std::string message("record 'a\0b' is empty; \0", 24);
  const auto said = [](const std::exception& error) { return std::string(error.what()); };
  for (const std::string& found :
       {said(UserError(message)), said(DistributedError(message)), said(InternalError(message))}) {
    EXPECT_EQ(found, "record 'a\\x00b' is empty; \\x00");
  }
}

}  // namespace
}  // namespace longspan
