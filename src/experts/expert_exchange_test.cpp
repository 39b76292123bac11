// The expert exchange: against plain loops and finite differences on one rank, and every group
// size, bound of a chunk and skew of choices against one rank.
#include "experts/expert_exchange.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "experts/expert_case.h"
#include "experts/selection_bias.h"
#include "kernels/cpu/reference_ops.h"
#include "layers/tensor_memory.h"

namespace longspan {
namespace {

constexpr double kTolerance = 1e-10;  // float64, sums of a few hundred terms in another order

// y by plain loops over tokens, choices and numbers.
at::Tensor by_loops(const ExpertCase& c, const ExpertData& data) {
  const int64_t D = c.width;
  const int64_t F = c.expert_width;
  const double* x = data.x_TD.const_data_ptr<double>();
  const double* gate = data.experts.gate_eFD.const_data_ptr<double>();
  const double* up = data.experts.up_eFD.const_data_ptr<double>();
  const double* down = data.experts.down_eDF.const_data_ptr<double>();
  at::Tensor y = at::zeros_like(data.x_TD);
  double* out = y.mutable_data_ptr<double>();
  for (int64_t place = 0; place < c.tokens * c.top_k; ++place) {
    const int64_t token = place / c.top_k;
    const int64_t e = data.ids_TK.const_data_ptr<int32_t>()[place];
    std::vector<double> gates(static_cast<size_t>(F), 0.0);
    std::vector<double> ups(static_cast<size_t>(F), 0.0);
    for (int64_t f = 0; f < F; ++f) {
      for (int64_t d = 0; d < D; ++d) {
        gates[static_cast<size_t>(f)] += gate[(e * F + f) * D + d] * x[token * D + d];
        ups[static_cast<size_t>(f)] += up[(e * F + f) * D + d] * x[token * D + d];
      }
    }
    const std::vector<double> a = reference::swiglu(gates, ups, c.limit);
    for (int64_t d = 0; d < D; ++d) {
      double sum = 0;
      for (int64_t f = 0; f < F; ++f) sum += down[(e * D + d) * F + f] * a[static_cast<size_t>(f)];
      out[token * D + d] += data.weights_TK.const_data_ptr<double>()[place] * sum;
    }
  }
  return y;
}

TEST(ExpertExchange, OneRankIsPlainLoopsAndFiniteDifferences) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    ExpertCase c{
        .seed = seed, .experts = 6, .top_k = static_cast<int64_t>(seed % 4) + 1, .tokens = 9};
    const ExpertOutcome found = run_expert_case(c);
    ExpertData data = draw_data(c);
    EXPECT_LT(relative_error(found.y, by_loops(c, data)), 1e-13);
    auto objective = [&] { return (by_loops(c, data) * data.dy_TD).sum().item<double>(); };
    // A small step: the clamps have kinks, which few numbers are near.
    auto expect = [&](const at::Tensor& gradient, at::Tensor& variable) {
      EXPECT_LT(relative_error(gradient, finite_difference(variable, objective, 1e-5)), 1e-7);
    };
    expect(found.dx, data.x_TD);
    expect(found.dweights, data.weights_TK);
    expect(found.gradients.gate_eFD - 1, data.experts.gate_eFD);
    expect(found.gradients.up_eFD - 1, data.experts.up_eFD);
    expect(found.gradients.down_eDF - 1, data.experts.down_eDF);
  }
}

ExpertCase random_case(uint64_t seed) {
  RandomStream random(seed, "expert case");
  constexpr int kRanks[] = {1, 2, 3, 4, 8};
  ExpertCase c;
  c.seed = seed;
  c.ranks = kRanks[seed % 5];
  c.skew = static_cast<Skew>(seed / 5 % 3);
  // All of rank 0's experts.
  if (seed / 15 % 2 == 1) c.idle_experts = c.experts / std::max(2, c.ranks);
  c.empty_rank = seed / 30 % 2 == 1;
  c.top_k = random.between(1, 8);
  c.tokens = random.between(0, 3) == 0 ? random.between(0, 5) : random.between(20, 150);
  const int64_t least = c.ranks * std::min(c.top_k, c.experts / c.ranks);
  c.bound = random.below(3) == 0 ? 1 << 20 : least + random.between(0, 3 * least);
  return c;
}

void expect_equal(const ExpertOutcome& found, const ExpertOutcome& expected) {
  EXPECT_LT(relative_error(found.y, expected.y), kTolerance);
  EXPECT_LT(relative_error(found.dx, expected.dx), kTolerance);
  EXPECT_LT(relative_error(found.dweights, expected.dweights), kTolerance);
  EXPECT_LT(relative_error(found.gradients.gate_eFD, expected.gradients.gate_eFD), kTolerance);
  EXPECT_LT(relative_error(found.gradients.up_eFD, expected.gradients.up_eFD), kTolerance);
  EXPECT_LT(relative_error(found.gradients.down_eDF, expected.gradients.down_eDF), kTolerance);
}

void expect_same_bits(const ExpertOutcome& a, const ExpertOutcome& b) {
  EXPECT_TRUE(at::equal(a.y, b.y));
  EXPECT_TRUE(at::equal(a.dx, b.dx));
  EXPECT_TRUE(at::equal(a.dweights, b.dweights));
  EXPECT_TRUE(at::equal(a.gradients.gate_eFD, b.gradients.gate_eFD));
  EXPECT_TRUE(at::equal(a.gradients.up_eFD, b.gradients.up_eFD));
  EXPECT_TRUE(at::equal(a.gradients.down_eDF, b.gradients.down_eDF));
}

TEST(ExpertExchange, AnyGroupAndBoundEqualsOneRank) {
  int64_t chunks_max = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const ExpertCase c = random_case(seed);
    SCOPED_TRACE(testing::Message() << c);
    const ExpertOutcome found = run_expert_case(c);
    ExpertCase whole = c;
    whole.ranks = 1;
    whole.bound = 1 << 20;
    expect_equal(found, run_expert_case(whole));
    EXPECT_LE(found.pairs_per_chunk, c.bound);
    chunks_max = std::max(chunks_max, found.chunks);
    if (seed % 4 == 0) expect_same_bits(found, run_expert_case(c));
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GE(chunks_max, 20);  // or the cases test little
}

// With K = 1 every token goes to expert 15, which lies on one rank; the others still take part.
TEST(ExpertExchange, AllTokensToOneExpert) {
  for (const int ranks : {2, 3, 8}) {
    ExpertCase c{.seed = 3, .ranks = ranks, .tokens = 100, .bound = 2 * ranks};
    c.skew = Skew::kOneExpert;
    SCOPED_TRACE(testing::Message() << c);
    const ExpertOutcome found = run_expert_case(c);
    EXPECT_GE(found.chunks, 100 / (2 * ranks));
    ExpertCase whole = c;
    whole.ranks = 1;
    expect_equal(found, run_expert_case(whole));
    const at::Tensor others =
        at::cat({found.gradients.up_eFD.slice(0, 0, 15), found.gradients.up_eFD.slice(0, 16, 24)});
    EXPECT_TRUE(at::equal(others, at::ones_like(others)));
  }
}

// All tokens to one expert: buffers do not grow with their number.
TEST(ExpertExchange, BuffersStayWithinTheBoundOfAChunk) {
  keep_tensor_memory();
  const int64_t width = 512;  // blocks large enough to be counted
  const ExpertGroupShape shape{4, 1, 1, 256};
  RandomStream random(1, "memory");
  const ExpertWeights weights = {random_tensor(random, {4, width, width}),
                                 random_tensor(random, {4, width, width}),
                                 random_tensor(random, {4, width, width})};
  const ExpertWeightGradients gradients = {at::zeros_like(weights.gate_eFD),
                                           at::zeros_like(weights.up_eFD),
                                           at::zeros_like(weights.down_eDF)};
  const ExpertExchange exchange({.group = shape}, nullptr);
  for (const int64_t tokens : {int64_t{1000}, int64_t{4000}}) {
    const at::Tensor x = at::ones({tokens, width}, at::kDouble);
    const at::Tensor share = at::ones({tokens, 1}, at::kDouble);
    const at::Tensor ids = at::ones({tokens, 1}, at::kInt);
    const ExpertDispatch dispatch = exchange.dispatch({}, ids);
    EXPECT_GE(dispatch.chunks(), tokens / 256);
    // A peak of our own: what is in use now and the result, then the exchange on top.
    const int64_t result_bytes = static_cast<int64_t>(x.nbytes());
    const int64_t before = tensor_memory_use().used_bytes + result_bytes;
    const int64_t peak_before = tensor_memory_use().used_bytes_peak;
    exchange.backward({}, dispatch, {x, share}, x, weights, gradients);
    const int64_t peak = tensor_memory_use().used_bytes_peak;
    EXPECT_GT(peak, peak_before);  // or nothing was measured
    const int64_t bound = expert_chunk_bytes(shape, width, width, 8);
    EXPECT_LE(peak - before, bound + bound / 8);  // blocks are rounded up
    EXPECT_GE(peak - before, bound * 3 / 4);      // and the bound is no idle one
  }
}

TEST(ExpertExchange, WeightsOfOtherExpertsAreAnError) {
  const ExpertCase c{.seed = 1, .tokens = 4};
  const ExpertData data = draw_data(c);
  const ExpertExchange exchange({.group = {c.experts, c.top_k, 1, c.bound}}, nullptr);
  const ExpertDispatch dispatch = exchange.dispatch({}, data.ids_TK);
  const ExpertWeights half = {data.experts.gate_eFD.slice(0, 0, 12),
                              data.experts.up_eFD.slice(0, 0, 12),
                              data.experts.down_eDF.slice(0, 0, 12)};
  EXPECT_THROW(exchange.forward({}, dispatch, {data.x_TD, data.weights_TK}, half), InternalError);
}

TEST(SelectionBias, MovesAgainstTheLoad) {
  const std::vector<int64_t> loads = {10, 4, 0, 2};  // mean 4
  const std::vector<double> none(4, 0.0);
  EXPECT_EQ(selection_bias_steps(loads, 0.125), (std::vector<double>{-0.125, 0, 0.125, 0.125}));
  EXPECT_EQ(selection_bias_steps(loads, 0), none);
  EXPECT_EQ(selection_bias_steps(std::vector<int64_t>(4, 0), 0.125), none);
  EXPECT_THROW(selection_bias_steps(loads, -1), InternalError);
}

}  // namespace
}  // namespace longspan
