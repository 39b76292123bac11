// Short convolution, unit rows, decay gate and gated norm against plain loops, gradients against
// finite differences of those.
#include "kernels/cpu/kda_rows.h"

#include <gtest/gtest.h>

#include "kernels/cpu/kda_test_values.h"
#include "kernels/cpu/reference_kda.h"
#include "kernels/cpu/short_convolution.h"

namespace longspan {
namespace {

constexpr double kDerivativeTolerance = 1e-8;

TEST(ShortConvolution, ValuesAndGradients) {
  constexpr int64_t kWidth = 5;
  for (const int64_t taps : {1, 2, 4}) {
    for (const int64_t rows : {1, 2, 3, 4, 7, 300}) {
      for (int64_t before = 0; before < taps; ++before) {
        SCOPED_TRACE(testing::Message() << rows << " rows, " << before << " before, " << taps);
        RandomStream random(static_cast<uint64_t>(rows * 8 + before), "convolution");
        const Values x = random_values(random, (before + rows) * kWidth, 1);
        const Values weight = random_values(random, taps * kWidth, 0.7);
        const Values dy = random_values(random, rows * kWidth, 1);
        const ConvolutionInput<double> input{
            {x.data() + before * kWidth, kWidth}, {x.data(), kWidth}, before};
        Values y(dy.size());
        short_convolution_forward<double>(input, rows, kWidth, taps, weight.data(),
                                          {y.data(), kWidth});
        const auto forward = [&](const Values& in, const Values& w) {
          return reference::short_convolution(static_cast<size_t>(before), kWidth,
                                              static_cast<size_t>(taps), in, w);
        };
        EXPECT_LT(relative_error(y, forward(x, weight)), 1e-13);
        Values dx(x.size());
        Values dweight(weight.size());
        short_convolution_backward<double>(
            input, rows, kWidth, taps, weight.data(), {dy.data(), kWidth},
            {dx.data() + before * kWidth, kWidth}, {dx.data(), kWidth}, dweight.data());
        EXPECT_LT(
            derivative_error(
                x, dx, [&](const Values& in) { return dot(forward(in, weight), dy); }, random),
            kDerivativeTolerance);
        EXPECT_LT(
            derivative_error(
                weight, dweight, [&](const Values& w) { return dot(forward(x, w), dy); }, random),
            kDerivativeTolerance);
      }
    }
  }
}

TEST(KdaRows, UnitRows) {
  RandomStream random(1, "unit rows");
  const Values x = random_values(random, 6 * 7, 1e-2);
  const Values dy = random_values(random, 6 * 7, 1);
  Values y = x;
  Values inverse(6);
  unit_rows_forward(6, 7, 0.3, y.data(), inverse.data());
  EXPECT_LT(relative_error(y, reference::unit_rows(7, 0.3, x)), 1e-14);
  Values dx = dy;
  unit_rows_backward(6, 7, 0.3, y.data(), inverse.data(), dx.data());
  EXPECT_LT(derivative_error(
                x, dx, [&](const Values& in) { return dot(reference::unit_rows(7, 0.3, in), dy); },
                random),
            1e-6);
}

TEST(KdaRows, DecayGates) {
  constexpr int64_t kTokens = 9;
  const GateShape shape{3, 4};
  for (const DecayGate::Kind kind : {DecayGate::Kind::kBounded, DecayGate::Kind::kSoftplus}) {
    RandomStream random(2, "gates");
    const DecayGate gate{kind, -5};
    const Values f = random_values(random, kTokens * 12, 2);
    const Values a_log = random_values(random, 3, 0.5);
    const Values bias = random_values(random, 12, 1);
    const Values dg = random_values(random, kTokens * 12, 1);
    const auto forward = [&](const Values& in, const Values& a, const Values& b) {
      Values g;
      for (size_t i = 0; i < in.size(); ++i) {
        const double z = in[i] + b[i % 12];
        g.push_back(kind == DecayGate::Kind::kBounded
                        ? reference::bounded_gate(-5, a[i % 12 / 4], z)
                        : reference::softplus_gate(a[i % 12 / 4], z));
      }
      return g;
    };
    Values g(f.size());
    decay_gate_forward(gate, shape, f.data(), a_log.data(), bias.data(), {0, kTokens}, g.data());
    EXPECT_LT(relative_error(g, forward(f, a_log, bias)), 1e-14);
    Values df(f.size());
    Values da(3);
    Values db(12);
    decay_gate_backward(gate, shape, f.data(), a_log.data(), bias.data(), dg.data(), {0, kTokens},
                        df.data(), da.data(), db.data());
    const auto error = [&](const Values& x, const Values& gradient, const auto& of) {
      return derivative_error(
          x, gradient, [&](const Values& moved) { return dot(of(moved), dg); }, random);
    };
    EXPECT_LT(error(f, df, [&](const Values& m) { return forward(m, a_log, bias); }), 1e-8);
    EXPECT_LT(error(a_log, da, [&](const Values& m) { return forward(f, m, bias); }), 1e-8);
    EXPECT_LT(error(bias, db, [&](const Values& m) { return forward(f, a_log, m); }), 1e-8);
  }
}

TEST(KdaRows, GatesOfLargeArgumentsStayFinite) {
  const std::vector<float> f = {-1e4f, -90, 0, 90, 1e4f};
  const float zero[5] = {};
  const float one[5] = {1, 1, 1, 1, 1};
  for (const DecayGate::Kind kind : {DecayGate::Kind::kBounded, DecayGate::Kind::kSoftplus}) {
    std::vector<float> g(5);
    std::vector<float> df(5);
    float da = 0;
    float db[5] = {};
    decay_gate_forward<float>({kind, -5}, {1, 5}, f.data(), zero, zero, {0, 1}, g.data());
    decay_gate_backward<float>({kind, -5}, {1, 5}, f.data(), zero, zero, one, {0, 1}, df.data(),
                               &da, db);
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_TRUE(std::isfinite(g[i]) && g[i] <= 0) << g[i];
      EXPECT_TRUE(std::isfinite(df[i])) << df[i];
    }
    EXPECT_TRUE(std::isfinite(da));
  }
}

TEST(KdaRows, GatedNorm) {
  RandomStream random(3, "gated norm");
  const Values o = random_values(random, 8 * 6, 0.1);
  const Values gate = random_values(random, 8 * 6, 2);
  const Values weight = random_values(random, 6, 1);
  const Values dy = random_values(random, 8 * 6, 1);
  Values y(o.size());
  Values inverse(8);
  gated_norm_forward(o.data(), gate.data(), weight.data(), 1e-2, {0, 8}, 6, y.data(),
                     inverse.data());
  EXPECT_LT(relative_error(y, reference::gated_norm(o, gate, weight, 1e-2)), 1e-14);
  Values d_o(o.size());
  Values dgate(o.size());
  Values dweight(6);
  gated_norm_backward(o.data(), gate.data(), weight.data(), inverse.data(), dy.data(), {0, 8}, 6,
                      d_o.data(), dgate.data(), dweight.data());
  const auto error = [&](const Values& x, const Values& gradient, const auto& of) {
    return derivative_error(
        x, gradient, [&](const Values& moved) { return dot(of(moved), dy); }, random);
  };
  using reference::gated_norm;
  EXPECT_LT(error(o, d_o, [&](const Values& m) { return gated_norm(m, gate, weight, 1e-2); }),
            1e-8);
  EXPECT_LT(error(gate, dgate, [&](const Values& m) { return gated_norm(o, m, weight, 1e-2); }),
            1e-8);
  EXPECT_LT(error(weight, dweight, [&](const Values& m) { return gated_norm(o, gate, m, 1e-2); }),
            1e-8);
}

}  // namespace
}  // namespace longspan
