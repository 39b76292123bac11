// Linear attention on any layout is linear attention on one rank: outputs, gradients of inputs and
// of weights; and that is the recurrence, differentiated by torch.
//
// Tolerance: float64, sums of some hundred terms: 1e-10 relative per tensor.
#include "linear_attention/linear_attention_mix.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "linear_attention/mix_run.h"

namespace longspan {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr double kTolerance = 1e-10;

void expect_equal(const Tensors& found, const Tensors& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LE(relative_error(found[i], expected[i]), kTolerance) << kMixNames[i];
  }
}

// One document by the recurrence, in torch's differentiable operations.
at::Tensor document_by_recurrence(const MixProblem& problem, const Tensors& line,
                                  const Tensors& conv, const Range& document) {
  const int64_t H = problem.shape.heads;
  const int64_t K = problem.shape.key_width;
  const int64_t taps = problem.shape.conv_taps;
  const int64_t T = document.size();
  Tensors projections;
  for (int64_t n = 0; n < 3; ++n) {
    const at::Tensor x = line[0].narrow(0, document.begin, T).select(1, n).reshape({T, H * K});
    const at::Tensor padded = at::cat({at::zeros({taps - 1, H * K}, x.options()), x});
    at::Tensor z = at::zeros_like(x);
    for (int64_t tap = 0; tap < taps; ++tap) {
      z = z + padded.narrow(0, tap, T) * conv[static_cast<size_t>(n)].select(1, 0).select(1, tap);
    }
    at::Tensor y = at::silu(z).view({T, H, K});
    if (n < 2) y = y / ((y * y).sum(-1, true) + 1e-6).sqrt();
    projections.push_back(n == 0 ? y / std::sqrt(static_cast<double>(K)) : y);
  }
  at::Tensor state = at::zeros({H, K, K}, line[0].options());
  Tensors outputs;
  for (int64_t t = 0; t < T; ++t) {
    state = state * line[1][document.begin + t].exp().unsqueeze(2);
    const at::Tensor k = projections[1][t];
    const at::Tensor recalled = (state * k.unsqueeze(2)).sum(1);
    const at::Tensor u = (projections[2][t] - recalled) * line[2][document.begin + t].unsqueeze(1);
    state = state + k.unsqueeze(2) * u.unsqueeze(1);
    outputs.push_back((state * projections[0][t].unsqueeze(2)).sum(1));
  }
  return at::stack(outputs);
}

Tensors run_recurrence(const MixProblem& problem) {
  Tensors leaves;
  for (const at::Tensor& input : problem.inputs) leaves.push_back(input.clone());
  for (const at::Tensor& weight : problem.parameters().weights) leaves.push_back(weight.clone());
  for (at::Tensor& leaf : leaves) leaf.requires_grad_(true);
  const Tensors conv(leaves.begin() + 3, leaves.end());
  Tensors outputs;
  int64_t begin = 0;
  for (const int64_t tokens : problem.documents) {
    outputs.push_back(document_by_recurrence(problem, leaves, conv, {begin, begin + tokens}));
    begin += tokens;
  }
  const at::Tensor output = at::cat(outputs);
  Tensors results = {output.detach()};
  for (const at::Tensor& gradient : torch::autograd::grad({output}, leaves, {problem.d_output})) {
    results.push_back(gradient);
  }
  return results;
}

TEST(LinearAttentionMix, OneRankIsTheRecurrence) {
  expect_equal(run_mix_on_one_rank(make_mix_problem({1, 2, 3, 4, 5, 63, 64, 65, 70}, 1)),
               run_recurrence(make_mix_problem({1, 2, 3, 4, 5, 63, 64, 65, 70}, 1)));
}

class AnyLayout : public testing::TestWithParam<int> {};

TEST_P(AnyLayout, EqualsOneRank) {
  const int ranks = GetParam();
  for (const int chunks : {1, 2, 3, 5}) {
    for (uint64_t seed = 0; seed < 16; ++seed) {
      RandomStream random(seed * 100 + static_cast<uint64_t>(ranks * 10 + chunks), "layouts");
      const MixProblem problem = make_mix_problem(random_documents(random), seed);
      const int band = static_cast<int>(random.between(1, chunks));
      std::vector<double> shares;
      for (int rank = 0; rank < ranks; ++rank) shares.push_back(seed % 4 == 1 && rank == 1 ? 0 : 1);
      const TokenLayout layout =
          seed % 4 <= 1
              ? TokenLayout::make(problem.documents, {.chunks = chunks, .shares = shares})
              : TokenLayout::from_borders(problem.documents, chunks, ranks,
                                          random_borders(random, problem.tokens(), ranks * chunks));
      SCOPED_TRACE(text("ranks ", ranks, ", chunks ", chunks, ", band ", band, ", seed ", seed));
      expect_equal(run_mix(problem, layout, {.band = band}), run_mix_on_one_rank(problem));
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, AnyLayout, testing::Values(1, 2, 3, 4, 8));

TEST(LinearAttentionMix, OneTokenEverywhere) {
  const MixProblem problem = make_mix_problem({9, 3}, 4);
  std::vector<int64_t> borders;
  for (int64_t at = 0; at <= 12; ++at) borders.push_back(at);
  const TokenLayout layout = TokenLayout::from_borders(problem.documents, 4, 3, borders);
  for (const int band : {1, 2, 4}) {
    expect_equal(run_mix(problem, layout, {.band = band}), run_recurrence(problem));
  }
}

TEST(LinearAttentionMix, SameLayoutSameBitsForAnyNumberOfThreads) {
  const MixProblem problem = make_mix_problem({200, 3, 90}, 5, at::kFloat);
  const TokenLayout layout = TokenLayout::make(problem.documents, {.chunks = 2, .shares = {1, 1}});
  const Tensors one = run_mix(problem, layout, {.type = at::kFloat});
  for (const int threads : {1, 2, 3}) {
    const Tensors again = run_mix(problem, layout, {.threads = threads, .type = at::kFloat});
    for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], again[i]));
  }
}

}  // namespace
}  // namespace longspan
