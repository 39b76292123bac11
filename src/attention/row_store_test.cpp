#include "attention/row_store.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"

namespace longspan {
namespace {

// Rows whose values are their line positions.
at::Tensor line_rows(const Range& line) {
  return at::arange(line.begin, line.end, at::kDouble).unsqueeze(1);
}

TEST(RowStore, FindsRowsWhereTheyLie) {
  RowStore store;
  store.add({10, 20}, {line_rows({10, 20})});
  store.add({20, 25}, {line_rows({20, 25})});
  store.add({40, 50}, {line_rows({40, 50})});
  const auto pieces = store.find({15, 23});
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].rows, (Range{5, 10}));
  EXPECT_EQ(pieces[1].line, (Range{20, 23}));
  EXPECT_EQ(pieces[1].rows, (Range{0, 3}));
  EXPECT_TRUE(store.find({30, 30}).empty());
  EXPECT_THROW(store.find({24, 41}), InternalError);
  EXPECT_THROW(store.find({9, 11}), InternalError);
  EXPECT_THROW(store.find({49, 51}), InternalError);
  EXPECT_EQ(store.lines(), (std::vector<Range>{{10, 25}, {40, 50}}));
  EXPECT_TRUE(RowStore().lines().empty());
}

TEST(RowStore, ViewsOneSourceAndJoinsSeveral) {
  RowStore store;
  const at::Tensor first = line_rows({0, 8});
  store.add({0, 8}, {first});
  store.add({8, 12}, {line_rows({8, 12})});
  EXPECT_EQ(store.rows({2, 5})[0].const_data_ptr<double>(), first.const_data_ptr<double>() + 2);
  EXPECT_TRUE(store.rows({6, 10})[0].equal(line_rows({6, 10})));
}

TEST(RowStore, RandomOverlapsKeepTheFirstSource) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RandomStream random(seed, "row store test");
    RowStore store;
    std::vector<double> expected(60, -1);
    for (int idx = 0; idx < 8; ++idx) {
      const int64_t begin = random.between(0, 59);
      const Range line{begin, random.between(begin, 60)};
      at::Tensor rows = at::zeros({line.size(), 1}, at::kDouble);
      for (int64_t row = 0; row < line.size(); ++row) {
        rows.data_ptr<double>()[row] = static_cast<double>(idx * 100 + row);
        double& value = expected[static_cast<size_t>(line.begin + row)];
        if (value < 0) value = static_cast<double>(idx * 100 + row);
      }
      store.add(line, {rows});
    }
    for (int64_t row = 0; row < 60; ++row) {
      const double value = expected[static_cast<size_t>(row)];
      if (value < 0) {
        EXPECT_THROW(store.find({row, row + 1}), InternalError) << "seed " << seed;
      } else {
        EXPECT_EQ(store.rows({row, row + 1})[0].const_data_ptr<double>()[0], value)
            << "seed " << seed;
      }
    }
  }
}

TEST(RowStore, JoinCutsAtTheBordersOfBoth) {
  RowStore a;
  a.add({0, 10}, {line_rows({0, 10})});
  a.add({10, 20}, {line_rows({10, 20})});
  RowStore b;
  b.add({0, 15}, {line_rows({0, 15})});
  b.add({15, 30}, {line_rows({15, 30})});
  const RowStore both = join(a, b, {{2, 18}});
  ASSERT_EQ(both.num_sources(), 3);
  for (int32_t source = 0; source < 3; ++source) {
    ASSERT_EQ(both.tensors(source).size(), 2u);
    EXPECT_TRUE(both.tensors(source)[0].equal(both.tensors(source)[1]));
  }
  EXPECT_TRUE(both.rows({2, 18})[1].equal(line_rows({2, 18})));
  EXPECT_THROW(both.find({1, 3}), InternalError);
}

TEST(RowStore, JoinKeepsTheRowsAroundItsLines) {
  RowStore a;
  a.add({10, 40}, {line_rows({10, 40})});
  RowStore b;
  b.add({0, 30}, {line_rows({0, 30})});
  const RowStore both = join(a, b, {{12, 15}, {20, 22}});
  ASSERT_EQ(both.num_sources(), 1) << "the same rows of the same sources";
  EXPECT_TRUE(both.tensors(0)[0].equal(line_rows({10, 30})));
  EXPECT_TRUE(both.tensors(0)[1].equal(line_rows({10, 30})));
  EXPECT_EQ(both.lines(), (std::vector<Range>{{12, 15}, {20, 22}}));
  EXPECT_TRUE(both.rows({20, 22})[1].equal(line_rows({20, 22})));
}

TEST(RowStore, PartsOfALineComeFromOneSource) {
  RowStore store;
  store.add({10, 40}, {line_rows({10, 40})}, {{12, 15}, {20, 22}});
  store.add({10, 40}, {line_rows({10, 40}).neg()}, {{15, 20}});
  EXPECT_TRUE(store.rows({13, 15})[0].equal(line_rows({13, 15})));
  EXPECT_TRUE(store.rows({15, 20})[0].equal(line_rows({15, 20}).neg()));
  EXPECT_EQ(store.find({14, 22}).back().source, 0);
  EXPECT_THROW(store.find({10, 13}), InternalError);
  EXPECT_THROW(store.add({10, 40}, {line_rows({10, 40})}, {{30, 41}}), InternalError);
}

TEST(RowAccumulator, AddsAcrossRangesAndShowsSums) {
  RowAccumulator sums({{0, 4}, {10, 13}}, {{1}}, at::kDouble);
  sums.add({1, 3}, {line_rows({1, 3})});
  sums.add({2, 4}, {line_rows({2, 4})});
  sums.add({10, 11}, {line_rows({10, 11})});
  const at::Tensor rows = sums.rows({0, 4})[0];
  EXPECT_EQ(rows.const_data_ptr<double>()[1], 1);
  EXPECT_EQ(rows.const_data_ptr<double>()[2], 4);
  EXPECT_EQ(rows.const_data_ptr<double>()[3], 3);
  EXPECT_EQ(sums.tensors()[0].size(0), 7);
  EXPECT_EQ(sums.tensors()[0].const_data_ptr<double>()[4], 10);
  EXPECT_THROW(sums.add({3, 5}, {line_rows({3, 5})}), InternalError);
}

}  // namespace
}  // namespace longspan
