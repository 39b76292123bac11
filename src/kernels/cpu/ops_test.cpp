// Every kernel of this folder against reference_ops.h, and its gradient against finite differences
// of the reference, on random ragged shapes.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <numeric>

#include "base/random.h"
#include "kernels/cpu/adamw.h"
#include "kernels/cpu/cross_entropy.h"
#include "kernels/cpu/embedding.h"
#include "kernels/cpu/reference_ops.h"
#include "kernels/cpu/rms_norm.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/swiglu.h"
#include "kernels/cpu/vector_math.h"

namespace longspan {
namespace {

using Doubles = std::vector<double>;

template <typename Real>
constexpr double kEpsilon = static_cast<double>(std::numeric_limits<Real>::epsilon());

Doubles random_values(RandomStream& random, int64_t count, double scale = 1) {
  Doubles values(static_cast<size_t>(count));
  for (double& value : values) value = random.normal() * scale;
  return values;
}

// Rounds the values to Real, in place, so that kernel and reference see the same numbers.
template <typename Real>
std::vector<Real> cast(Doubles& values) {
  std::vector<Real> result(values.begin(), values.end());
  values.assign(result.begin(), result.end());
  return result;
}

template <typename Real>
std::vector<Real> poisoned(int64_t count) {
  return std::vector<Real>(static_cast<size_t>(count), std::numeric_limits<Real>::quiet_NaN());
}

// Norm of the difference over norm of the reference. NaN stays NaN, which no bound admits.
template <typename Real>
double relative_error(const std::vector<Real>& values, const Doubles& expected) {
  EXPECT_EQ(values.size(), expected.size());
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(static_cast<double>(values[i]) - expected[i], 2);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference / std::max(norm, 1e-300));
}

double dot(const Doubles& a, const Doubles& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// The gradient of `objective` at x by central differences of order four; its own error is near
// 1e-11 for functions with derivatives near 1.
Doubles finite_difference(Doubles x, const std::function<double(const Doubles&)>& objective) {
  constexpr double kStep = 1e-3;
  Doubles gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double center = x[i];
    auto at = [&](double offset) {
      x[i] = center + offset;
      return objective(x);
    };
    gradient[i] = (8 * (at(kStep) - at(-kStep)) - (at(2 * kStep) - at(-2 * kStep))) / (12 * kStep);
    x[i] = center;
  }
  return gradient;
}

// Gradients in Real: a few roundings per element and per term of the sums.
template <typename Real>
constexpr double kGradientBound = 1e-9 + 32 * kEpsilon<Real>;

template <typename Real>
class OpsTest : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(OpsTest, Types);

TYPED_TEST(OpsTest, ExpIsWithinTwoUlpsAndKeepsNan) {
  using Real = TypeParam;
  RandomStream random(1, "exp");
  const double bound = sizeof(Real) == 4 ? 87 : 708;
  for (int i = 0; i < 20000; ++i) {
    const Real x = static_cast<Real>((random.uniform() * 2 - 1) * bound);
    const double expected = std::exp(static_cast<double>(x));
    ASSERT_NEAR(static_cast<double>(vector_exp(x)) / expected, 1, 2 * kEpsilon<Real>) << x;
  }
  EXPECT_EQ(vector_exp(Real{0}), Real{1});
  EXPECT_TRUE(std::isnan(vector_exp(std::numeric_limits<Real>::quiet_NaN())));
  EXPECT_LT(vector_exp(-std::numeric_limits<Real>::infinity()), Real(1e-37));
  EXPECT_EQ(vector_logistic(Real{1000}), Real{1});
  EXPECT_LT(vector_logistic(Real{-1000}), Real(1e-37));
}

TYPED_TEST(OpsTest, RmsNorm) {
  using Real = TypeParam;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed, "rms norm");
    const int64_t width = random.between(1, 70);
    const int64_t rows = random.between(1, 9);
    const double epsilon = 1e-3;
    Doubles x = random_values(random, rows * width);
    Doubles weight = random_values(random, width);
    Doubles dy = random_values(random, rows * width);
    const auto x_real = cast<Real>(x);
    const auto weight_real = cast<Real>(weight);
    const auto dy_real = cast<Real>(dy);
    auto y = poisoned<Real>(rows * width);
    auto inverse_rms = poisoned<Real>(rows);
    const int64_t cut = rows / 2;
    for (const Range part : {Range{0, cut}, Range{cut, rows}}) {
      rms_norm_forward(x_real.data(), weight_real.data(), epsilon, part, width, y.data(),
                       inverse_rms.data());
    }
    EXPECT_LT(relative_error(y, reference::rms_norm(x, weight, epsilon)), 8 * kEpsilon<Real>);

    auto dx = poisoned<Real>(rows * width);
    auto again = poisoned<Real>(rows * width);
    std::vector<Real> dweight(static_cast<size_t>(width), Real{0});
    rms_norm_backward(x_real.data(), weight_real.data(), inverse_rms.data(), dy_real.data(),
                      {0, rows}, width, dx.data(), again.data(), dweight.data());
    EXPECT_EQ(again, y);
    const Doubles dx_expected = finite_difference(
        x, [&](const Doubles& at) { return dot(reference::rms_norm(at, weight, epsilon), dy); });
    const Doubles dweight_expected = finite_difference(
        weight, [&](const Doubles& at) { return dot(reference::rms_norm(x, at, epsilon), dy); });
    // width 1: dx is epsilon-small, the difference of nearly equal terms.
    if (width > 1) {
      EXPECT_LT(relative_error(dx, dx_expected), kGradientBound<Real>);
    }
    EXPECT_LT(relative_error(dweight, dweight_expected), kGradientBound<Real>);
  }
}

TYPED_TEST(OpsTest, Rope) {
  using Real = TypeParam;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed, "rope");
    const int64_t half = random.between(1, 33);
    const int64_t heads = random.between(1, 5);
    const int64_t tokens = random.between(1, 9);
    std::vector<float> frequencies;
    for (int64_t i = 0; i < half; ++i) {
      frequencies.push_back(static_cast<float>(std::pow(1e4, -static_cast<double>(i) / 7)));
    }
    std::vector<int64_t> positions;
    for (int64_t t = 0; t < tokens; ++t) positions.push_back(random.between(0, 1000000));
    Doubles q = random_values(random, tokens * heads * 2 * half);
    const auto q_real = cast<Real>(q);
    auto cosines = poisoned<Real>(tokens * half);
    auto sines = poisoned<Real>(tokens * half);
    const double scaling = 1.25;
    rope_table(frequencies.data(), half, scaling, positions.data(), {0, tokens}, cosines.data(),
               sines.data());
    auto rotated = poisoned<Real>(tokens * heads * 2 * half);
    rope_rotate(q_real.data(), cosines.data(), sines.data(), {0, tokens}, heads, 2 * half, 1,
                rotated.data());
    EXPECT_LT(relative_error(rotated, reference::rope(q, static_cast<size_t>(heads), frequencies,
                                                      scaling, positions)),
              4 * kEpsilon<Real>);
    // The backward direction is the transposed map, and for a scaled rotation that is the inverse
    // times scaling squared. In place.
    rope_rotate(rotated.data(), cosines.data(), sines.data(), {0, tokens}, heads, 2 * half, -1,
                rotated.data());
    Doubles back = q;
    for (double& value : back) value *= scaling * scaling;
    EXPECT_LT(relative_error(rotated, back), 8 * kEpsilon<Real>);
  }
}

TYPED_TEST(OpsTest, SwiGlu) {
  using Real = TypeParam;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed, "swiglu");
    const double limit = seed % 2 == 0 ? kNoSwigluLimit : 1.5;
    const int64_t n = random.between(1, 50);
    Doubles gate = random_values(random, n, 3);
    Doubles up = random_values(random, n, 2);
    // Finite differences do not see a kink.
    for (Doubles* values : {&gate, &up}) {
      for (double& value : *values) value += std::abs(std::abs(value) - 1.5) < 0.01 ? 0.1 : 0.0;
    }
    Doubles dy = random_values(random, n);
    const auto gate_real = cast<Real>(gate);
    const auto up_real = cast<Real>(up);
    auto dup = cast<Real>(dy);
    auto y = poisoned<Real>(n);
    swiglu_forward(gate_real.data(), up_real.data(), limit, {0, n}, y.data());
    EXPECT_LT(relative_error(y, reference::swiglu(gate, up, limit)), 8 * kEpsilon<Real>);
    auto again = poisoned<Real>(n);
    auto dgate = poisoned<Real>(n);
    swiglu_backward(gate_real.data(), up_real.data(), limit, dup.data(), {0, n}, again.data(),
                    dgate.data(), dup.data());
    EXPECT_LT(relative_error(again, reference::swiglu(gate, up, limit)), 8 * kEpsilon<Real>);
    auto objective_gate = [&](const Doubles& at) {
      return dot(reference::swiglu(at, up, limit), dy);
    };
    auto objective_up = [&](const Doubles& at) {
      return dot(reference::swiglu(gate, at, limit), dy);
    };
    EXPECT_LT(relative_error(dgate, finite_difference(gate, objective_gate)), kGradientBound<Real>);
    EXPECT_LT(relative_error(dup, finite_difference(up, objective_up)), kGradientBound<Real>);
  }
}

// At the limit itself the gradient passes; the gate has no lower limit; NaN stays NaN.
TYPED_TEST(OpsTest, SwiGluLimit) {
  using Real = TypeParam;
  const Real nan = std::numeric_limits<Real>::quiet_NaN();
  const std::vector<Real> gate = {2, Real(2.5), -50, 1, 1, nan, 1};
  const std::vector<Real> up = {2, 1, -2, -3, 3, 1, nan};
  const std::vector<Real> ones(gate.size(), 1);
  auto y = poisoned<Real>(7);
  auto dgate = poisoned<Real>(7);
  auto dup = poisoned<Real>(7);
  swiglu_backward(gate.data(), up.data(), 2.0, ones.data(), {0, 7}, y.data(), dgate.data(),
                  dup.data());
  EXPECT_NE(dgate[0], 0);
  EXPECT_NE(dup[0], 0);
  EXPECT_EQ(dgate[1], 0);
  EXPECT_NE(dgate[2], 0);
  EXPECT_NE(dup[2], 0);
  EXPECT_EQ(dup[3], 0);
  EXPECT_EQ(dup[4], 0);
  EXPECT_EQ(y[3], -y[4]);
  EXPECT_TRUE(std::isnan(y[5]) && std::isnan(dgate[5]));
  EXPECT_TRUE(std::isnan(y[6]) && std::isnan(dgate[6]));
}

TYPED_TEST(OpsTest, CrossEntropy) {
  using Real = TypeParam;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed, "cross entropy");
    const int64_t rows = random.between(1, 6);
    const int64_t vocabulary = seed < 2 ? random.between(1030, 1100) : random.between(1, 90);
    Doubles logits = random_values(random, rows * vocabulary, 4);
    auto gradient = cast<Real>(logits);
    std::vector<int32_t> targets;
    std::vector<float> weights;
    for (int64_t t = 0; t < rows; ++t) {
      targets.push_back(static_cast<int32_t>(random.between(0, vocabulary - 1)));
      weights.push_back(static_cast<float>(random.uniform()));
    }
    const Doubles expected = reference::cross_entropy(logits, targets);
    Doubles losses = poisoned<double>(rows);
    cross_entropy_losses(gradient.data(), targets.data(), {0, rows}, vocabulary, losses.data());
    // A loss near 0 is a difference of logits near 4.
    for (size_t t = 0; t < losses.size(); ++t) {
      EXPECT_NEAR(losses[t], expected[t], 32 * kEpsilon<Real>);
    }
    const double scale = 0.125;
    losses = poisoned<double>(rows);
    cross_entropy_gradient(gradient.data(), targets.data(), weights.data(), scale, {0, rows},
                           vocabulary, losses.data());
    for (size_t t = 0; t < losses.size(); ++t) {
      EXPECT_NEAR(losses[t], expected[t], 32 * kEpsilon<Real>);
    }
    const Doubles gradient_expected = finite_difference(logits, [&](const Doubles& at) {
      const Doubles row_losses = reference::cross_entropy(at, targets);
      double total = 0;
      for (size_t t = 0; t < weights.size(); ++t) {
        total += scale * static_cast<double>(weights[t]) * row_losses[t];
      }
      return total;
    });
    if (vocabulary > 1) {
      EXPECT_LT(relative_error(gradient, gradient_expected), 1e-8 + 32 * kEpsilon<Real>);
    }
  }
}

TYPED_TEST(OpsTest, CrossEntropyShowsNan) {
  using Real = TypeParam;
  std::vector<Real> logits(7, Real{0});
  logits[3] = std::numeric_limits<Real>::quiet_NaN();
  const int32_t target = 0;
  double loss = 0;
  cross_entropy_losses(logits.data(), &target, {0, 1}, 7, &loss);
  EXPECT_TRUE(std::isnan(loss));
}

TYPED_TEST(OpsTest, EmbeddingGathersAndAddsInRowOrder) {
  using Real = TypeParam;
  RandomStream random(3, "embedding");
  const int64_t vocabulary = 5;
  const int64_t width = 19;
  const int64_t rows = 40;
  Doubles table = random_values(random, vocabulary * width);
  Doubles dx = random_values(random, rows * width);
  const auto table_real = cast<Real>(table);
  const auto dx_real = cast<Real>(dx);
  std::vector<int32_t> tokens;
  for (int64_t t = 0; t < rows; ++t) {
    tokens.push_back(static_cast<int32_t>(random.between(0, vocabulary - 1)));
  }
  auto x = poisoned<Real>(rows * width);
  embedding_gather(table_real.data(), tokens.data(), {0, rows}, width, x.data());
  std::vector<Real> expected(static_cast<size_t>(vocabulary * width), Real{1});
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t c = 0; c < width; ++c) {
      const auto entry = static_cast<size_t>(tokens[static_cast<size_t>(t)] * width + c);
      EXPECT_EQ(x[static_cast<size_t>(t * width + c)], table_real[entry]);
      expected[entry] += dx_real[static_cast<size_t>(t * width + c)];
    }
  }
  std::vector<Real> gradient(static_cast<size_t>(vocabulary * width), Real{1});
  for (const Range columns : {Range{0, 7}, Range{7, 8}, Range{8, 19}}) {
    embedding_scatter_add(dx_real.data(), tokens.data(), rows, columns, width, gradient.data());
  }
  EXPECT_EQ(gradient, expected);
  EXPECT_TRUE(token_ids_within(tokens.data(), rows, vocabulary));
  tokens.back() = 5;
  EXPECT_FALSE(token_ids_within(tokens.data(), rows, vocabulary));
  tokens.back() = -1;
  EXPECT_FALSE(token_ids_within(tokens.data(), rows, vocabulary));
}

TYPED_TEST(OpsTest, AdamWFollowsItsFormulaInAnySlices) {
  using Real = TypeParam;
  RandomStream random(4, "adamw");
  const int64_t n = 37;
  Doubles weight = random_values(random, n);
  auto weight_real = cast<Real>(weight);
  std::vector<Real> m_real(static_cast<size_t>(n), Real{0});
  std::vector<Real> v_real = m_real;
  Doubles m(static_cast<size_t>(n), 0.0);
  Doubles v = m;
  for (int64_t step = 1; step <= 5; ++step) {
    Doubles gradient = random_values(random, n);
    const auto gradient_real = cast<Real>(gradient);
    const AdamWStep settings{.learning_rate = 0.01,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .epsilon = 1e-8,
                             .weight_decay = 0.1,
                             .gradient_scale = 0.5,
                             .step = step};
    for (const Range slice : {Range{0, 5}, Range{5, 6}, Range{6, n}}) {
      adamw_update(settings, slice, gradient_real.data(), weight_real.data(), m_real.data(),
                   v_real.data());
    }
    for (size_t i = 0; i < weight.size(); ++i) {
      const double g = gradient[i] * 0.5;
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.95 * v[i] + 0.05 * g * g;
      const double m_hat = m[i] / (1 - std::pow(0.9, step));
      const double v_hat = v[i] / (1 - std::pow(0.95, step));
      weight[i] -= 0.01 * 0.1 * weight[i];
      weight[i] -= 0.01 * m_hat / (std::sqrt(v_hat) + 1e-8);
    }
  }
  EXPECT_LT(relative_error(weight_real, weight), 16 * kEpsilon<Real>);
  EXPECT_LT(relative_error(m_real, m), 16 * kEpsilon<Real>);
  EXPECT_LT(relative_error(v_real, v), 16 * kEpsilon<Real>);
  EXPECT_NEAR(squared_norm(m_real.data(), {0, n}), dot(m, m), 32 * kEpsilon<Real> * dot(m, m));
}

}  // namespace
}  // namespace longspan
