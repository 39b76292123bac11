// Decay gates and gated norm: values against torch's own operations, gradients of inputs and
// parameters against finite differences, threads, no rows.
#include "layers/kda_ops.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "layers/segment.h"
#include "layers/test_parameters.h"

namespace longspan {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kHeads = 3;
constexpr int64_t kWidth = 4;
constexpr double kEpsilon = 1e-2;

struct Case {
  std::string name;
  std::vector<std::vector<int64_t>> parameter_shapes;
  size_t inputs = 1;
  std::function<at::Tensor(const ParameterAccess&, const Tensors&)> run;
  std::function<at::Tensor(const Tensors& parameters, const Tensors& inputs)> formula;
};

std::vector<Case> cases() {
  const auto gate_case = [](DecayGate::Kind kind, const std::string& name, const auto& formula) {
    return Case{name,
                {{1, 1, kHeads, 1}, {kHeads * kWidth}},
                1,
                [kind](const ParameterAccess& access, const Tensors& in) {
                  return decay_gate(access, {kind, -5}, in[0], {0, 1});
                },
                [formula](const Tensors& w, const Tensors& in) {
                  return formula(w[0].view({kHeads, 1}).exp(), in[0] + w[1].view({kHeads, kWidth}));
                }};
  };
  return {gate_case(DecayGate::Kind::kBounded, "bounded gate",
                    [](const at::Tensor& rate, const at::Tensor& f) {
                      return at::Tensor(-5 * (rate * f).sigmoid());
                    }),
          gate_case(DecayGate::Kind::kSoftplus, "softplus gate",
                    [](const at::Tensor& rate, const at::Tensor& f) {
                      return at::Tensor(-rate * at::softplus(f));
                    }),
          {"gated norm",
           {{kWidth}},
           2,
           [](const ParameterAccess& access, const Tensors& in) {
             return gated_norm(access, in[0], in[1], 0, kEpsilon);
           },
           [](const Tensors& w, const Tensors& in) {
             const at::Tensor rms = (in[0] * in[0]).mean(-1, true).add(kEpsilon).sqrt();
             return w[0] * in[0] / rms * in[1].sigmoid();
           }}};
}

struct Outcome {
  Tensors all;  // output, input gradients, parameter gradients
  int64_t stored_bytes = 0;
};

Tensors inputs_of(const Case& test, int64_t tokens, at::ScalarType type) {
  RandomStream random(6, "inputs");
  Tensors inputs;
  for (size_t i = 0; i < test.inputs; ++i) {
    inputs.push_back(random_tensor(random, {tokens, kHeads, kWidth}, type));
  }
  return inputs;
}

at::Tensor output_gradient(int64_t tokens, at::ScalarType type) {
  RandomStream random(9, "output gradient");
  return random_tensor(random, {tokens, kHeads, kWidth}, type);
}

Outcome outcome_of(const Case& test, int64_t tokens, at::ScalarType type) {
  TestParameters parameters(test.parameter_shapes, type, 5);
  Segment segment =
      Segment::record([&](const Tensors& in) { return Tensors{test.run(parameters.access(), in)}; },
                      inputs_of(test, tokens, type));
  Outcome outcome{segment.outputs(), segment.stored_bytes()};
  for (const at::Tensor& dx : segment.backward({output_gradient(tokens, type)})) {
    outcome.all.push_back(dx);
  }
  for (const at::Tensor& gradient : parameters.gradients) outcome.all.push_back(gradient);
  return outcome;
}

TEST(KdaOps, ValuesAndGradients) {
  for (const int64_t tokens : {int64_t{1}, int64_t{7}}) {
    for (const Case& test : cases()) {
      SCOPED_TRACE(test.name);
      const Outcome outcome = outcome_of(test, tokens, at::kDouble);
      TestParameters parameters(test.parameter_shapes, at::kDouble, 5);
      Tensors inputs = inputs_of(test, tokens, at::kDouble);
      EXPECT_LT(relative_error(outcome.all[0], test.formula(parameters.weights, inputs)), 1e-14);
      const at::Tensor dy = output_gradient(tokens, at::kDouble);
      const auto objective = [&] {
        return (test.formula(parameters.weights, inputs) * dy).sum().item<double>();
      };
      size_t idx = 1;
      for (Tensors* group : {&inputs, &parameters.weights}) {
        for (at::Tensor& x : *group) {
          EXPECT_LT(relative_error(outcome.all.at(idx), finite_difference(x, objective)), 1e-8)
              << idx;
          idx += 1;
        }
      }
    }
  }
}

TEST(KdaOps, BitsDoNotDependOnTheNumberOfThreadsAndNoRowsAreFine) {
  for (const Case& test : cases()) {
    SCOPED_TRACE(test.name);
    at::set_num_threads(1);
    const Outcome one = outcome_of(test, 3001, at::kFloat);
    at::set_num_threads(3);
    const Outcome three = outcome_of(test, 3001, at::kFloat);
    at::set_num_threads(1);
    for (size_t i = 0; i < one.all.size(); ++i) EXPECT_TRUE(at::equal(one.all[i], three.all[i]));
    const Outcome none = outcome_of(test, 0, at::kFloat);
    EXPECT_EQ(none.all[1].size(0), 0);
    EXPECT_EQ(none.all.back().abs().sum().item<float>(), 0);
    const int64_t kept =
        test.inputs == 2 ? 4 * 3001 * kHeads * (3 * kWidth + 1) : 4 * 3001 * kHeads * 2 * kWidth;
    EXPECT_EQ(one.stored_bytes, kept);
  }
}

}  // namespace
}  // namespace longspan
