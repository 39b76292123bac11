// Products with one order of sums: against plain loops, and the same bits however rows and columns
// are dealt.
#include "kernels/cpu/ordered_products.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

namespace longspan {
namespace {

template <typename Real>
std::vector<Real> random_values(RandomStream& random, int64_t count) {
  std::vector<Real> values(static_cast<size_t>(count));
  for (Real& value : values) value = static_cast<Real>(random.normal());
  return values;
}

// Starts of parts: 0, some multiples of the step, the end.
std::vector<int64_t> random_cuts(RandomStream& random, int64_t size, int64_t step) {
  std::vector<int64_t> cuts = {0};
  for (int64_t at = step; at < size; at += step) {
    if (random.below(2) == 0) cuts.push_back(at);
  }
  cuts.push_back(size);
  return cuts;
}

template <typename Real>
struct Products {
  std::vector<Real> y, dx, dw;
  bool operator==(const Products&) const = default;
};

template <typename Real>
struct Inputs {
  int64_t tokens;
  OrderedShape shape;
  std::vector<Real> x, w, w_transposed, dy, dx, dw;
};

template <typename Real>
Inputs<Real> random_inputs(RandomStream& random) {
  const int64_t tokens = random.between(0, 400);
  const OrderedShape shape{random.between(1, random.below(4) == 0 ? 1200 : 60),
                           random.between(1, 40)};
  Inputs<Real> in{tokens, shape, random_values<Real>(random, tokens * shape.k),
                  random_values<Real>(random, shape.m * shape.k)};
  for (int64_t k = 0; k < shape.k; ++k) {
    for (int64_t m = 0; m < shape.m; ++m) {
      in.w_transposed.push_back(in.w[static_cast<size_t>(m * shape.k + k)]);
    }
  }
  in.dy = random_values<Real>(random, tokens * shape.m);
  in.dx = random_values<Real>(random, tokens * shape.k);
  in.dw = random_values<Real>(random, shape.m * shape.k);
  return in;
}

template <typename Real>
Products<Real> by_parts(const Inputs<Real>& in, const std::vector<int64_t>& rows,
                        const std::vector<int64_t>& columns) {
  Products<Real> out{std::vector<Real>(static_cast<size_t>(in.tokens * in.shape.m),
                                       std::numeric_limits<Real>::quiet_NaN()),
                     in.dx, in.dw};
  for (size_t i = 0; i + 1 < rows.size(); ++i) {
    const Range part{rows[i], rows[i + 1]};
    ordered_product(in.x.data(), in.w_transposed.data(), part, in.shape, out.y.data());
    ordered_add_product(in.dy.data(), in.w.data(), part, in.shape, out.dx.data());
  }
  for (size_t i = 0; i + 1 < columns.size(); ++i) {
    ordered_add_outer(in.dy.data(), in.x.data(), in.tokens, in.shape, {columns[i], columns[i + 1]},
                      out.dw.data());
  }
  return out;
}

template <typename Real>
Products<double> by_loops(const Inputs<Real>& in) {
  const auto [k, m] = in.shape;
  Products<double> out{std::vector<double>(static_cast<size_t>(in.tokens * m)),
                       {in.dx.begin(), in.dx.end()},
                       {in.dw.begin(), in.dw.end()}};
  for (int64_t t = 0; t < in.tokens; ++t) {
    for (int64_t row = 0; row < m; ++row) {
      for (int64_t column = 0; column < k; ++column) {
        const auto at_y = static_cast<size_t>(t * m + row);
        const auto at_x = static_cast<size_t>(t * k + column);
        const auto at_w = static_cast<size_t>(row * k + column);
        out.y[at_y] += static_cast<double>(in.x[at_x]) * static_cast<double>(in.w[at_w]);
        out.dx[at_x] += static_cast<double>(in.dy[at_y]) * static_cast<double>(in.w[at_w]);
        out.dw[at_w] += static_cast<double>(in.dy[at_y]) * static_cast<double>(in.x[at_x]);
      }
    }
  }
  return out;
}

template <typename Real>
void expect_near(const std::vector<Real>& found, const std::vector<double>& expected) {
  double difference = 0;
  double norm = 0;
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    difference += std::pow(static_cast<double>(found[i]) - expected[i], 2);
    norm += expected[i] * expected[i];
  }
  // Sums of up to 1200 terms, rounded independently.
  const double bound = 64 * static_cast<double>(std::numeric_limits<Real>::epsilon());
  EXPECT_LE(std::sqrt(difference), bound * std::sqrt(norm));
}

template <typename Real>
class OrderedProducts : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(OrderedProducts, Types);

TYPED_TEST(OrderedProducts, ArePlainLoopsAndDoNotDependOnTheParts) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed, "ordered products");
    const Inputs<TypeParam> in = random_inputs<TypeParam>(random);
    const Products<TypeParam> whole = by_parts(in, {0, in.tokens}, {0, in.shape.k});
    const Products<double> expected = by_loops(in);
    expect_near(whole.y, expected.y);
    expect_near(whole.dx, expected.dx);
    expect_near(whole.dw, expected.dw);
    EXPECT_EQ(by_parts(in, random_cuts(random, in.tokens, kOrderedRows),
                       random_cuts(random, in.shape.k, kOrderedColumns)),
              whole);
  }
}

}  // namespace
}  // namespace longspan
