// The router: choices against a plain sort, weights against the formula, gradients against finite
// differences, ties, kept choices, threads.
#include "layers/router.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/cpu/reference_ops.h"
#include "layers/segment.h"
#include "layers/test_parameters.h"

namespace longspan {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr RouterParameters kIds = {0, 1};

struct Case {
  int64_t tokens, width, experts;
  RouterOptions options;
};

Case random_case(uint64_t seed) {
  RandomStream random(seed, "router case");
  Case c{random.between(1, 9), random.between(1, 6), random.between(1, 20), {}};
  c.options.top_k = random.between(1, std::min<int64_t>(c.experts, 8));
  c.options.normalized = seed % 3 != 0;
  c.options.scale = seed % 2 == 0 ? 2.5 : 1.0;
  return c;
}

TestParameters parameters_of(const Case& c, at::ScalarType type, uint64_t seed) {
  TestParameters parameters({{c.experts, c.width}, {c.experts}}, type, seed);
  parameters.weights[1].mul_(0.2);
  return parameters;
}

std::vector<double> row_of(const at::Tensor& matrix, int64_t row) {
  const at::Tensor values = matrix[row].to(at::kDouble).contiguous();
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

std::vector<int32_t> ids_of(const at::Tensor& ids, int64_t row) {
  const int32_t* values = ids.const_data_ptr<int32_t>() + row * ids.size(1);
  return {values, values + ids.size(1)};
}

at::Tensor weights_by_loops(const Case& c, const at::Tensor& weight, const at::Tensor& x,
                            const at::Tensor& ids) {
  std::vector<double> all;
  for (int64_t t = 0; t < c.tokens; ++t) {
    std::vector<double> logits;
    for (int64_t e = 0; e < c.experts; ++e) {
      logits.push_back((weight[e].to(at::kDouble) * x[t].to(at::kDouble)).sum().item<double>());
    }
    const auto weights =
        reference::router_weights(logits, ids_of(ids, t), c.options.normalized, c.options.scale);
    all.insert(all.end(), weights.begin(), weights.end());
  }
  return at::tensor(all, at::kDouble).view({c.tokens, c.options.top_k});
}

TEST(Router, ChoicesAndWeights) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    const Case c = random_case(seed);
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      TestParameters parameters = parameters_of(c, type, seed);
      RandomStream random(seed, "x");
      const at::Tensor x = random_tensor(random, {c.tokens, c.width}, type);
      const Routing routing = route(parameters.access(), x, kIds, c.options, {});
      const at::Tensor scores = x.mm(parameters.weights[0].t()).to(at::kDouble).sigmoid();
      for (int64_t t = 0; t < c.tokens; ++t) {
        EXPECT_EQ(ids_of(routing.ids_TK, t),
                  reference::router_choice(row_of(scores, t),
                                           row_of(parameters.weights[1].unsqueeze(0), 0),
                                           static_cast<size_t>(c.options.top_k)));
      }
      EXPECT_LT(relative_error(routing.weights_TK,
                               weights_by_loops(c, parameters.weights[0], x, routing.ids_TK)),
                type == at::kFloat ? 1e-5 : 1e-14);
    }
  }
}

// Equal rankings: the lower index first, wherever the equal ones stand.
TEST(Router, TiesGoToTheLowerIndex) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed, "ties");
    const int64_t experts = random.between(2, 30);
    Case c{1, 1, experts, {}};
    c.options.top_k = random.between(1, std::min<int64_t>(experts, 8));
    TestParameters parameters = parameters_of(c, at::kDouble, seed);
    parameters.weights[0].zero_();
    std::vector<double> bias;
    for (int64_t e = 0; e < experts; ++e)
      bias.push_back(0.25 * static_cast<double>(random.between(-1, 1)));
    parameters.weights[1] = at::tensor(bias, at::kDouble);
    const Routing routing =
        route(parameters.access(), at::ones({1, 1}, at::kDouble), kIds, c.options, {});
    EXPECT_EQ(ids_of(routing.ids_TK, 0),
              reference::router_choice(std::vector<double>(bias.size(), 0.5), bias,
                                       static_cast<size_t>(c.options.top_k)));
  }
}

struct Outcome {
  at::Tensor ids, weights, dx;
  Tensors parameter_gradients;
};

Outcome run_case(const Case& c, TestParameters& parameters, const at::Tensor& x,
                 const at::Tensor& kept) {
  Outcome outcome;
  Segment segment = Segment::record(
      [&](const Tensors& in) {
        const Routing routing = route(parameters.access(), in[0], kIds, c.options, kept);
        outcome.ids = routing.ids_TK;
        return Tensors{routing.weights_TK};
      },
      {x});
  outcome.weights = segment.outputs()[0];
  for (at::Tensor& gradient : parameters.gradients) gradient.zero_();
  RandomStream random(2, "dw");
  outcome.dx = segment.backward(
      {random_tensor(random, outcome.weights.sizes().vec(), outcome.weights.scalar_type())})[0];
  for (const at::Tensor& gradient : parameters.gradients) {
    outcome.parameter_gradients.push_back(gradient.clone());
  }
  return outcome;
}

TEST(Router, GradientsAreFiniteDifferences) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    const Case c = random_case(seed);
    TestParameters parameters = parameters_of(c, at::kDouble, seed);
    RandomStream random(seed, "x");
    at::Tensor x = random_tensor(random, {c.tokens, c.width});
    const Outcome outcome = run_case(c, parameters, x, {});
    RandomStream again(2, "dw");
    const at::Tensor dw = random_tensor(again, outcome.weights.sizes().vec());
    auto objective = [&] {
      return (weights_by_loops(c, parameters.weights[0], x, outcome.ids) * dw).sum().item<double>();
    };
    // A single expert's normalized weight is constant: its gradient is rounding noise.
    if (c.options.top_k == 1 && c.options.normalized) {
      EXPECT_LT(outcome.dx.abs().max().item<double>(), 1e-12);
      continue;
    }
    EXPECT_LT(relative_error(outcome.dx, finite_difference(x, objective)), 1e-8);
    EXPECT_LT(relative_error(outcome.parameter_gradients[0],
                             finite_difference(parameters.weights[0], objective)),
              1e-8);
    EXPECT_EQ(outcome.parameter_gradients[1].abs().max().item<double>(), 0);
  }
}

TEST(Router, KeptChoicesAreRepeated) {
  const Case c{40, 5, 12, {.top_k = 3, .scale = 2.5}};
  TestParameters parameters = parameters_of(c, at::kFloat, 4);
  RandomStream random(4, "x");
  const at::Tensor x = random_tensor(random, {c.tokens, c.width}, at::kFloat);
  const Outcome first = run_case(c, parameters, x, {});
  parameters.weights[1].mul_(-50);  // another choice, were it made
  EXPECT_FALSE(at::equal(run_case(c, parameters, x, {}).ids, first.ids));
  const Outcome repeated = run_case(c, parameters, x, first.ids);
  EXPECT_TRUE(at::equal(repeated.ids, first.ids));
  EXPECT_TRUE(at::equal(repeated.weights, first.weights));
  EXPECT_TRUE(at::equal(repeated.dx, first.dx));
}

TEST(Router, BitsDoNotDependOnTheNumberOfThreads) {
  const Case c{5001, 16, 40, {.top_k = 8}};
  TestParameters parameters = parameters_of(c, at::kFloat, 4);
  RandomStream random(4, "x");
  const at::Tensor x = random_tensor(random, {c.tokens, c.width}, at::kFloat);
  at::set_num_threads(1);
  const Outcome one = run_case(c, parameters, x, {});
  at::set_num_threads(3);
  const Outcome three = run_case(c, parameters, x, {});
  at::set_num_threads(1);
  EXPECT_TRUE(at::equal(one.weights, three.weights));
  EXPECT_TRUE(at::equal(one.dx, three.dx));
  EXPECT_TRUE(at::equal(one.parameter_gradients[0], three.parameter_gradients[0]));
}

TEST(Router, NoTokensAndOneExpert) {
  const Case none{0, 3, 4, {.top_k = 2}};
  TestParameters parameters = parameters_of(none, at::kFloat, 1);
  EXPECT_EQ(run_case(none, parameters, at::empty({0, 3}), {}).dx.size(0), 0);
  const Case single{3, 3, 1, {.top_k = 1, .scale = 2}};
  TestParameters one = parameters_of(single, at::kFloat, 1);
  EXPECT_TRUE(
      at::allclose(run_case(single, one, at::ones({3, 3}), {}).weights, at::full({3, 1}, 2.0f)));
}

TEST(Router, WhatIsNotImplementedIsRefused) {
  const Case c{2, 3, 4, {}};
  TestParameters parameters = parameters_of(c, at::kFloat, 1);
  const at::Tensor x = at::ones({2, 3});
  auto message = [&](const RouterOptions& options) {
    try {
      route(parameters.access(), x, kIds, options, {});
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(message({.top_k = 2, .groups = 2}).find("n_group"), std::string::npos);
  EXPECT_NE(message({.top_k = 5}).find("num_experts_per_tok"), std::string::npos);
}

}  // namespace
}  // namespace longspan
