// The differentiable operations: values against formulas of torch's own operations, gradients of
// inputs and weights against finite differences, stored bytes, recomputing, threads.
#include "layers/ops.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "layers/rope_table.h"
#include "layers/segment.h"
#include "layers/test_parameters.h"

namespace longspan {
namespace {

using Tensors = std::vector<at::Tensor>;

// One operation under test: its parameters' shapes, its inputs, and how it is called.
struct Case {
  std::string name;
  std::vector<std::vector<int64_t>> parameter_shapes;
  std::vector<std::vector<int64_t>> input_shapes;
  std::function<Tensors(const ParameterAccess&, const Tensors&)> run;
  // The same in operations of torch: parameters, inputs -> outputs.
  std::function<Tensors(const Tensors&, const Tensors&)> formula;
  // What backward needs, of the inputs and beyond them.
  std::function<int64_t(const Tensors&)> stored_elements;
};

at::Tensor norm_formula(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  return x / (x * x).mean(-1, true).add(epsilon).sqrt() * weight;
}

std::vector<int64_t> some_positions(int64_t tokens) {
  std::vector<int64_t> positions;
  for (int64_t t = 0; t < tokens; ++t) positions.push_back(t % 5 == 0 ? 70000 + t : 3 * t);
  return positions;
}

const std::vector<float> kFrequencies = {1.0f, 0.1f, 0.01f};

at::Tensor rope_formula(const at::Tensor& q_THK) {
  const std::vector<int64_t> positions = some_positions(q_THK.size(0));
  const at::Tensor angles =
      (at::tensor(positions, at::kFloat).unsqueeze(1) * at::tensor(kFrequencies).unsqueeze(0))
          .unsqueeze(1)
          .to(q_THK.scalar_type());
  const at::Tensor low = q_THK.narrow(2, 0, 3);
  const at::Tensor high = q_THK.narrow(2, 3, 3);
  return 1.5 * at::cat({low * angles.cos() - high * angles.sin(),
                        high * angles.cos() + low * angles.sin()},
                       2);
}

std::vector<Case> cases(int64_t T, at::ScalarType type) {
  const int64_t C = 6;
  const int64_t F = 10;
  const double epsilon = 1e-2;
  std::vector<Case> result;
  result.push_back({"norm_linear",
                    {{C}, {5, C}, {3, C}},
                    {{T, C}},
                    [=](const ParameterAccess& access, const Tensors& in) {
                      const std::vector<ParameterId> projections = {1, 2};
                      return norm_linear(access, in[0], 0, epsilon, projections);
                    },
                    [=](const Tensors& w, const Tensors& in) {
                      const at::Tensor y = norm_formula(in[0], w[0], epsilon);
                      return Tensors{y.mm(w[1].t()), y.mm(w[2].t())};
                    },
                    [=](const Tensors&) { return T * C + T + T * 5 + T * 3; }});
  result.push_back(
      {"linear",
       {{C, F}},
       {{T, F}, {T, C}},
       [](const ParameterAccess& access, const Tensors& in) {
         return Tensors{linear(access, in[0], 0, in[1])};
       },
       [](const Tensors& w, const Tensors& in) { return Tensors{in[0].mm(w[0].t()) + in[1]}; },
       [=](const Tensors&) { return T * F + T * C + T * C; }});
  result.push_back({"head_norm",
                    {{C}},
                    {{T, 3, C}},
                    [=](const ParameterAccess& access, const Tensors& in) {
                      return Tensors{head_norm(access, in[0], 0, epsilon)};
                    },
                    [=](const Tensors& w, const Tensors& in) {
                      return Tensors{norm_formula(in[0], w[0], epsilon)};
                    },
                    [=](const Tensors&) { return T * 3 * C + T * 3 + T * 3 * C; }});
  result.push_back({"rope",
                    {},
                    {{T, 2, C}},
                    [=](const ParameterAccess&, const Tensors& in) {
                      return Tensors{
                          rope(in[0], make_rope_table(kFrequencies, 1.5, some_positions(T), type))};
                    },
                    [](const Tensors&, const Tensors& in) { return Tensors{rope_formula(in[0])}; },
                    [=](const Tensors&) { return 2 * T * 2 * C; }});
  result.push_back({"swiglu_linear",
                    {{C, F}},
                    {{T, F}, {T, F}, {T, C}},
                    [](const ParameterAccess& access, const Tensors& in) {
                      return Tensors{swiglu_linear(access, in[0], in[1], 0, in[2])};
                    },
                    [](const Tensors& w, const Tensors& in) {
                      return Tensors{(in[0] * in[0].sigmoid() * in[1]).mm(w[0].t()) + in[2]};
                    },
                    [=](const Tensors&) { return 2 * T * F + T * C + T * C; }});
  result.push_back({"swiglu_linear with a limit, without a residual",
                    {{C, F}},
                    {{T, F}, {T, F}},
                    [](const ParameterAccess& access, const Tensors& in) {
                      return Tensors{swiglu_linear(access, in[0], in[1], 0, {}, 0.75)};
                    },
                    [](const Tensors& w, const Tensors& in) {
                      const at::Tensor gate = in[0].clamp_max(0.75);
                      return Tensors{
                          (gate * gate.sigmoid() * in[1].clamp(-0.75, 0.75)).mm(w[0].t())};
                    },
                    [=](const Tensors&) { return 2 * T * F + T * C; }});
  result.push_back({"project",
                    {{C, F}},
                    {{T, F}},
                    [](const ParameterAccess& access, const Tensors& in) {
                      return Tensors{project(access, in[0], 0)};
                    },
                    [](const Tensors& w, const Tensors& in) { return Tensors{in[0].mm(w[0].t())}; },
                    [=](const Tensors&) { return T * F + T * C; }});
  return result;
}

struct Outcome {
  Tensors outputs;
  Tensors input_gradients;
  Tensors parameter_gradients;
  int64_t stored_bytes = 0;
};

Tensors output_gradients_for(const Tensors& outputs) {
  RandomStream random(9, "output gradients");
  Tensors gradients;
  for (const at::Tensor& output : outputs) {
    gradients.push_back(random_tensor(random, output.sizes().vec(), output.scalar_type()));
  }
  return gradients;
}

Outcome forward_and_backward(const Case& test, TestParameters& parameters, const Tensors& inputs) {
  Segment segment =
      Segment::record([&](const Tensors& in) { return test.run(parameters.access(), in); }, inputs);
  Outcome outcome;
  outcome.outputs = segment.outputs();
  outcome.stored_bytes = segment.stored_bytes();
  for (at::Tensor& gradient : parameters.gradients) gradient.zero_();
  outcome.input_gradients = segment.backward(output_gradients_for(outcome.outputs));
  for (const at::Tensor& gradient : parameters.gradients) {
    outcome.parameter_gradients.push_back(gradient.clone());
  }
  return outcome;
}

double dot(const Tensors& a, const Tensors& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] * b[i]).sum().item<double>();
  return sum;
}

Tensors random_inputs(const Case& test, at::ScalarType type, uint64_t seed) {
  RandomStream random(seed, "inputs");
  Tensors inputs;
  for (const auto& shape : test.input_shapes) inputs.push_back(random_tensor(random, shape, type));
  return inputs;
}

TEST(Ops, ValuesAndGradients) {
  for (const int64_t tokens : {int64_t{1}, int64_t{7}}) {
    for (const Case& test : cases(tokens, at::kDouble)) {
      SCOPED_TRACE(test.name);
      TestParameters parameters(test.parameter_shapes, at::kDouble, 5);
      Tensors inputs = random_inputs(test, at::kDouble, 6);
      const Outcome outcome = forward_and_backward(test, parameters, inputs);
      const Tensors expected = test.formula(parameters.weights, inputs);
      ASSERT_EQ(outcome.outputs.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_LT(relative_error(outcome.outputs[i], expected[i]), 1e-14);
        EXPECT_FALSE(outcome.outputs[i].requires_grad());
      }
      const Tensors dy = output_gradients_for(expected);
      auto objective = [&] { return dot(test.formula(parameters.weights, inputs), dy); };
      ASSERT_EQ(outcome.input_gradients.size(), inputs.size());
      for (size_t i = 0; i < inputs.size(); ++i) {
        EXPECT_LT(
            relative_error(outcome.input_gradients[i], finite_difference(inputs[i], objective)),
            1e-8);
      }
      for (size_t i = 0; i < parameters.weights.size(); ++i) {
        EXPECT_LT(relative_error(outcome.parameter_gradients[i],
                                 finite_difference(parameters.weights[i], objective)),
                  1e-8);
      }
    }
  }
}

TEST(Ops, StoredBytesAreWhatBackwardNeeds) {
  const int64_t tokens = 13;
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const Case& test : cases(tokens, type)) {
      SCOPED_TRACE(test.name);
      TestParameters parameters(test.parameter_shapes, type, 5);
      const Tensors inputs = random_inputs(test, type, 6);
      const Outcome outcome = forward_and_backward(test, parameters, inputs);
      EXPECT_EQ(outcome.stored_bytes,
                test.stored_elements(inputs) * static_cast<int64_t>(at::elementSize(type)));
    }
  }
}

TEST(Ops, NoTokensAtAll) {
  for (const Case& test : cases(0, at::kFloat)) {
    SCOPED_TRACE(test.name);
    TestParameters parameters(test.parameter_shapes, at::kFloat, 5);
    const Tensors inputs = random_inputs(test, at::kFloat, 6);
    const Outcome outcome = forward_and_backward(test, parameters, inputs);
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_EQ(outcome.input_gradients[i].sizes(), inputs[i].sizes());
    }
    for (const at::Tensor& gradient : outcome.parameter_gradients) {
      EXPECT_EQ(gradient.abs().sum().item<float>(), 0);
    }
  }
}

void expect_same_bits(const Outcome& a, const Outcome& b) {
  auto compare = [](const Tensors& x, const Tensors& y) {
    ASSERT_EQ(x.size(), y.size());
    for (size_t i = 0; i < x.size(); ++i) EXPECT_TRUE(at::equal(x[i], y[i])) << i;
  };
  compare(a.outputs, b.outputs);
  compare(a.input_gradients, b.input_gradients);
  compare(a.parameter_gradients, b.parameter_gradients);
}

TEST(Ops, BitsDoNotDependOnTheNumberOfThreads) {
  const int64_t tokens = 5001;
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const Case& test : cases(tokens, type)) {
      SCOPED_TRACE(test.name);
      TestParameters parameters(test.parameter_shapes, type, 5);
      const Tensors inputs = random_inputs(test, type, 6);
      at::set_num_threads(1);
      const Outcome one = forward_and_backward(test, parameters, inputs);
      at::set_num_threads(2);
      const Outcome two = forward_and_backward(test, parameters, inputs);
      at::set_num_threads(3);
      const Outcome three = forward_and_backward(test, parameters, inputs);
      at::set_num_threads(1);
      expect_same_bits(one, two);
      expect_same_bits(one, three);
    }
  }
}

TEST(Segment, RunRecordAndRecordAgainGiveTheSameBits) {
  for (const Case& test : cases(300, at::kFloat)) {
    SCOPED_TRACE(test.name);
    TestParameters parameters(test.parameter_shapes, at::kFloat, 5);
    const Tensors inputs = random_inputs(test, at::kFloat, 6);
    const Outcome first = forward_and_backward(test, parameters, inputs);
    const Tensors run =
        Segment::run([&](const Tensors& in) { return test.run(parameters.access(), in); }, inputs);
    for (size_t i = 0; i < run.size(); ++i) {
      EXPECT_TRUE(at::equal(run[i], first.outputs[i]));
      EXPECT_EQ(run[i].grad_fn(), nullptr);
    }
    expect_same_bits(first, forward_and_backward(test, parameters, inputs));
  }
}

TEST(Segment, GradientsAddToTheAccumulators) {
  const Case test = cases(4, at::kDouble)[1];
  TestParameters parameters(test.parameter_shapes, at::kDouble, 5);
  const Tensors inputs = random_inputs(test, at::kDouble, 6);
  const at::Tensor once = forward_and_backward(test, parameters, inputs).parameter_gradients[0];
  Segment segment =
      Segment::record([&](const Tensors& in) { return test.run(parameters.access(), in); }, inputs);
  segment.backward(output_gradients_for(segment.outputs()));
  EXPECT_LT(relative_error(parameters.gradients[0], 2 * once), 1e-14);
}

TEST(Segment, BackwardFreesWhatItKept) {
  const Case test = cases(4, at::kDouble)[4];
  TestParameters parameters(test.parameter_shapes, at::kDouble, 5);
  Tensors inputs = random_inputs(test, at::kDouble, 6);
  const c10::weak_intrusive_ptr<c10::StorageImpl> gate(inputs[0].storage().getWeakStorageImpl());
  Segment segment =
      Segment::record([&](const Tensors& in) { return test.run(parameters.access(), in); }, inputs);
  const int64_t with_outputs = segment.stored_bytes();
  const Tensors dy = output_gradients_for(segment.outputs());
  segment.release_outputs();
  EXPECT_EQ(with_outputs - segment.stored_bytes(), 4 * 6 * 8);
  inputs.clear();
  EXPECT_FALSE(gate.expired());
  segment.backward(dy);
  EXPECT_TRUE(gate.expired());
  EXPECT_FALSE(segment.recorded());
  EXPECT_EQ(segment.stored_bytes(), 0);
  EXPECT_THROW(segment.backward(dy), InternalError);
}

TEST(Segment, StoragesAreCountedOnce) {
  const Case test = cases(4, at::kDouble)[1];
  TestParameters parameters(test.parameter_shapes, at::kDouble, 5);
  const Tensors inputs = random_inputs(test, at::kDouble, 6);
  const auto body = [&](const Tensors& in) { return test.run(parameters.access(), in); };
  const Segment first = Segment::record(body, inputs);
  const Segment second = Segment::record(body, inputs);
  StorageSet both;
  both.add(inputs[0]);
  both.add(inputs[1].view({-1}));
  first.add_storages(both);
  second.add_storages(both);
  EXPECT_EQ(both.bytes(), 8 * 4 * (10 + 6 + 2 * 6));
}

TEST(Segment, ChangeInPlaceOfASavedTensorIsAnError) {
  const Case test = cases(4, at::kDouble)[1];
  TestParameters parameters(test.parameter_shapes, at::kDouble, 5);
  const Tensors inputs = random_inputs(test, at::kDouble, 6);
  Segment segment =
      Segment::record([&](const Tensors& in) { return test.run(parameters.access(), in); }, inputs);
  inputs[0].add_(1);
  EXPECT_THROW(segment.backward(output_gradients_for(segment.outputs())), InternalError);
}

TEST(Segment, OperationsThatHideWhatTheyKeepAreAnErrorOfTheCount) {
  RandomStream random(1, "x");
  const Segment segment = Segment::record([](const Tensors& in) { return Tensors{in[0].exp()}; },
                                          {random_tensor(random, {3})});
  EXPECT_THROW(segment.stored_bytes(), InternalError);
}

}  // namespace
}  // namespace longspan
