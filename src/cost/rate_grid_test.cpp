#include "cost/rate_grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/random.h"

namespace longspan {
namespace {

TEST(Log2OfCount, AgreesWithTheLibrary) {
  for (int64_t count = 1; count <= 70000; ++count) {
    ASSERT_NEAR(log2_of_count(count), std::log2(static_cast<double>(count)), 1e-6) << count;
  }
  RandomStream random(1, "log2");
  for (int draw = 0; draw < 100000; ++draw) {
    const int64_t count = random.between(1, int64_t{1} << random.between(1, 62));
    ASSERT_NEAR(log2_of_count(count), std::log2(static_cast<double>(count)), 1e-6) << count;
  }
}

TEST(Log2OfCount, IsExactAtPowersOfTwo) {
  for (int exponent = 0; exponent < 62; ++exponent) {
    EXPECT_EQ(log2_of_count(int64_t{1} << exponent), exponent);
  }
}

std::vector<int64_t> random_axis(RandomStream& random) {
  std::vector<int64_t> axis;
  int64_t at = random.between(1, 200);
  for (int64_t points = random.between(1, 6); points > 0; --points) {
    axis.push_back(at);
    at += random.between(1, 3 * at);
  }
  return axis;
}

RateGrid random_grid(RandomStream& random) {
  std::vector<int64_t> query_rows = random_axis(random);
  std::vector<int64_t> key_rows = random_axis(random);
  std::vector<double> rates(query_rows.size() * key_rows.size());
  for (double& rate : rates) rate = 1e12 * (1 + 99 * random.uniform());
  return RateGrid(std::move(query_rows), std::move(key_rows), std::move(rates));
}

// The weight of each point of an axis at `count`: hats over log2, constant beyond the ends.
std::vector<double> hats(const std::vector<int64_t>& axis, int64_t count) {
  const double at = std::log2(static_cast<double>(std::clamp(count, axis.front(), axis.back())));
  std::vector<double> weights;
  for (size_t idx = 0; idx < axis.size(); ++idx) {
    const double here = std::log2(static_cast<double>(axis[idx]));
    double weight = at == here ? 1 : 0;
    if (idx > 0 && at < here) {
      const double below = std::log2(static_cast<double>(axis[idx - 1]));
      weight = std::max(0.0, (at - below) / (here - below));
    }
    if (idx + 1 < axis.size() && at > here) {
      const double above = std::log2(static_cast<double>(axis[idx + 1]));
      weight = std::max(0.0, (above - at) / (above - here));
    }
    weights.push_back(weight);
  }
  return weights;
}

TEST(RateGrid, InterpolatesAsHatFunctionsDo) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed, "rate grid");
    const RateGrid grid = random_grid(random);
    for (int draw = 0; draw < 50; ++draw) {
      const int64_t queries = random.between(1, 2 * grid.query_rows().back());
      const int64_t keys = random.between(1, 2 * grid.key_rows().back());
      const std::vector<double> query_weights = hats(grid.query_rows(), queries);
      const std::vector<double> key_weights = hats(grid.key_rows(), keys);
      double expected = 0;
      for (size_t query = 0; query < query_weights.size(); ++query) {
        for (size_t key = 0; key < key_weights.size(); ++key) {
          expected += query_weights[query] * key_weights[key] *
                      grid.flops_per_s()[query * key_weights.size() + key];
        }
      }
      // Logarithms are right to 2e-7, neighbours of the grid can differ a hundredfold and be one
      // count apart.
      const double bound = 1e-3 * expected;
      ASSERT_NEAR(grid.at(queries, keys), expected, bound) << queries << " x " << keys;
    }
  }
}

TEST(RateGrid, GivesItsOwnPoints) {
  RandomStream random(7, "own points");
  const RateGrid grid = random_grid(random);
  for (size_t query = 0; query < grid.query_rows().size(); ++query) {
    for (size_t key = 0; key < grid.key_rows().size(); ++key) {
      const double own = grid.flops_per_s()[query * grid.key_rows().size() + key];
      EXPECT_NEAR(grid.at(grid.query_rows()[query], grid.key_rows()[key]), own, 1e-12 * own);
    }
  }
}

TEST(RateGrid, RefusesWhatIsNoGrid) {
  EXPECT_THROW(RateGrid({}, {1}, {}), UserError);
  EXPECT_THROW(RateGrid({1}, {}, {}), UserError);
  EXPECT_THROW(RateGrid({0}, {1}, {1.0}), UserError);
  EXPECT_THROW(RateGrid({1, 1}, {1}, {1.0, 1.0}), UserError);
  EXPECT_THROW(RateGrid({2, 1}, {1}, {1.0, 1.0}), UserError);
  EXPECT_THROW(RateGrid({1, 2}, {1}, {1.0}), UserError);
  for (const double rate : {0.0, -1.0, double{INFINITY}, double{NAN}}) {
    EXPECT_THROW(RateGrid({1}, {1}, {rate}), UserError) << rate;
  }
}

// Rates linear in both logarithms are predicted without error; one point that is off by a tenth
// shows as such.
TEST(CrossValidate, FindsThePointThatIsOff) {
  const std::vector<int64_t> axis = {128, 256, 512, 1024, 2048};
  std::vector<double> rates;
  for (size_t query = 0; query < axis.size(); ++query) {
    for (size_t key = 0; key < axis.size(); ++key) {
      rates.push_back(100.0 + 3.0 * static_cast<double>(query) + 5.0 * static_cast<double>(key));
    }
  }
  EXPECT_NEAR(cross_validate(RateGrid(axis, axis, rates)).max, 0, 1e-6);
  rates[2 * axis.size() + 2] /= 1.1;
  const InterpolationError error = cross_validate(RateGrid(axis, axis, rates));
  EXPECT_NEAR(error.max, 0.1, 1e-6);
  EXPECT_GT(error.mean, 0.1 / 9);
  EXPECT_LT(error.mean, 0.1);
}

TEST(CrossValidate, IsZeroWithoutInteriorPoints) {
  EXPECT_EQ(cross_validate(RateGrid({1, 2}, {1, 2, 3}, {1, 2, 3, 4, 5, 6})).max, 0);
}

}  // namespace
}  // namespace longspan
