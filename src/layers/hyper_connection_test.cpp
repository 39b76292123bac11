// Hyper-connections: values against plain loops, gradients against finite differences of those
// loops and against torch's own differentiation of the formulas, stored bytes, threads.
#include "layers/hyper_connection.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "kernels/cpu/reference_ops.h"
#include "layers/segment.h"
#include "layers/test_parameters.h"

namespace longspan {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr HyperParameters kIds = {0, 1, 2};

struct Site {
  int64_t tokens, streams, width;
  HyperOptions options;

  int64_t maps() const { return streams * (streams + 2); }
};

// fn, base, scale; maps that differ well from one half and from each other.
TestParameters parameters_of(const Site& site, at::ScalarType type, uint64_t seed) {
  TestParameters parameters({{site.maps(), site.streams * site.width}, {site.maps()}, {3}}, type,
                            seed);
  parameters.weights[0].mul_(0.3);
  return parameters;
}

// streams and y.
Tensors inputs_of(const Site& site, at::ScalarType type, uint64_t seed) {
  RandomStream random(seed, "streams");
  return {random_tensor(random, {site.tokens, site.streams, site.width}, type),
          random_tensor(random, {site.tokens, site.width}, type)};
}

// x_in leaves as an output of its own: its gradient comes from there.
Tensors through_site(const ParameterAccess& access, const HyperOptions& options,
                     const Tensors& in) {
  const HyperRead read = hyper_read(access, in[0], kIds, options);
  const at::Tensor after = hyper_write(in[0], in[1], read.write, read.mix);
  return {after, read.x_in, streams_mean(after)};
}

std::vector<double> values_of(const at::Tensor& tensor) {
  const at::Tensor doubles = tensor.to(at::kDouble).contiguous();
  return {doubles.const_data_ptr<double>(), doubles.const_data_ptr<double>() + doubles.numel()};
}

at::Tensor tensor_of(const std::vector<double>& values, at::IntArrayRef shape) {
  return at::tensor(values, at::kDouble).view(shape);
}

// through_site in plain loops.
Tensors by_loops(const Site& site, const Tensors& parameters, const Tensors& in) {
  const auto n = static_cast<size_t>(site.streams);
  const auto streams = values_of(in[0]);
  const reference::HyperConnection read = reference::hyper_read(
      streams, values_of(parameters[0]), values_of(parameters[1]), values_of(parameters[2]), n,
      static_cast<size_t>(site.options.sinkhorn_rounds), site.options.norm_epsilon,
      site.options.epsilon);
  const at::Tensor after =
      tensor_of(reference::hyper_write(streams, values_of(in[1]), read.write, read.mix, n),
                {site.tokens, site.streams, site.width});
  return {after, tensor_of(read.x_in, {site.tokens, site.width}), after.sum(1) / site.streams};
}

// through_site in operations of torch, for its automatic differentiation.
Tensors by_torch(const Site& site, const Tensors& parameters, const Tensors& in) {
  const int64_t n = site.streams;
  const at::Tensor flat = in[0].flatten(1);
  const at::Tensor normed =
      flat / (flat * flat).mean(-1, true).add(site.options.norm_epsilon).sqrt();
  const at::Tensor raw = normed.mm(parameters[0].t());
  const at::Tensor& base = parameters[1];
  const at::Tensor& scale = parameters[2];
  auto part = [&](int64_t which, int64_t begin, int64_t size) {
    return scale[which] * raw.narrow(1, begin, size) + base.narrow(0, begin, size);
  };
  const at::Tensor read = part(0, 0, n).sigmoid() + site.options.epsilon;
  const at::Tensor write = 2 * part(1, n, n).sigmoid();
  at::Tensor mix = part(2, 2 * n, n * n).view({-1, n, n}).softmax(-1) + site.options.epsilon;
  mix = mix / (mix.sum(-2, true) + site.options.epsilon);
  for (int64_t round = 1; round < site.options.sinkhorn_rounds; ++round) {
    mix = mix / (mix.sum(-1, true) + site.options.epsilon);
    mix = mix / (mix.sum(-2, true) + site.options.epsilon);
  }
  const at::Tensor after =
      write.unsqueeze(2) * in[1].unsqueeze(1) + at::einsum("tij,tic->tjc", {mix, in[0]});
  return {after, at::einsum("ti,tic->tc", {read, in[0]}), after.mean(1)};
}

Tensors output_gradients_of(const Tensors& outputs) {
  RandomStream random(9, "output gradients");
  Tensors gradients;
  for (const at::Tensor& output : outputs) {
    gradients.push_back(random_tensor(random, output.sizes().vec(), output.scalar_type()));
  }
  return gradients;
}

struct Outcome {
  Tensors outputs;
  Tensors gradients;  // of streams, y, fn, base, scale
  int64_t stored_bytes = 0;
};

Outcome run_site(const Site& site, TestParameters& parameters, const Tensors& inputs) {
  Segment segment = Segment::record(
      [&](const Tensors& in) { return through_site(parameters.access(), site.options, in); },
      inputs);
  Outcome outcome;
  outcome.outputs = segment.outputs();
  outcome.stored_bytes = segment.stored_bytes();
  for (at::Tensor& gradient : parameters.gradients) gradient.zero_();
  outcome.gradients = segment.backward(output_gradients_of(outcome.outputs));
  for (const at::Tensor& gradient : parameters.gradients) {
    outcome.gradients.push_back(gradient.clone());
  }
  return outcome;
}

Site random_site(uint64_t seed) {
  RandomStream random(seed, "site");
  Site site{random.between(1, 5), random.between(2, 4), random.between(1, 6), {}};
  site.options.norm_epsilon = 1e-3;
  site.options.epsilon = seed % 2 == 0 ? 1e-6 : 1e-2;
  site.options.sinkhorn_rounds = seed % 3 == 0 ? 20 : random.between(1, 4);
  return site;
}

double dot(const Tensors& a, const Tensors& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] * b[i]).sum().item<double>();
  return sum;
}

TEST(HyperConnection, ValuesAreThoseOfPlainLoops) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    const Site site = random_site(seed);
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      TestParameters parameters = parameters_of(site, type, seed);
      const Tensors inputs = inputs_of(site, type, seed);
      const Tensors found = through_site(parameters.access(), site.options, inputs);
      const Tensors expected = by_loops(site, parameters.weights, inputs);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_LT(relative_error(found[i], expected[i]), type == at::kFloat ? 1e-5 : 1e-13) << i;
      }
    }
  }
}

TEST(HyperConnection, GradientsAreFiniteDifferences) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    const Site site = random_site(seed);
    TestParameters parameters = parameters_of(site, at::kDouble, seed);
    Tensors inputs = inputs_of(site, at::kDouble, seed);
    const Outcome outcome = run_site(site, parameters, inputs);
    const Tensors dy = output_gradients_of(outcome.outputs);
    auto objective = [&] { return dot(by_loops(site, parameters.weights, inputs), dy); };
    Tensors all = inputs;
    all.insert(all.end(), parameters.weights.begin(), parameters.weights.end());
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_LT(relative_error(outcome.gradients[i], finite_difference(all[i], objective)), 1e-8)
          << i;
    }
  }
}

TEST(HyperConnection, GradientsAreThoseOfTorch) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    Site site = random_site(seed);
    site.tokens = 300;  // more than one block of the sums over tokens
    TestParameters parameters = parameters_of(site, at::kDouble, seed);
    const Tensors inputs = inputs_of(site, at::kDouble, seed);
    const Outcome outcome = run_site(site, parameters, inputs);
    Tensors all = inputs;
    all.insert(all.end(), parameters.weights.begin(), parameters.weights.end());
    for (at::Tensor& tensor : all) tensor = tensor.detach().clone().set_requires_grad(true);
    const Tensors outputs = by_torch(site, {all[2], all[3], all[4]}, {all[0], all[1]});
    const Tensors expected = torch::autograd::grad(outputs, all, output_gradients_of(outputs));
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LT(relative_error(outcome.gradients[i], expected[i]), 1e-9) << i;
    }
  }
}

// Softmax inputs far beyond what exp holds, and streams of zeros: everything stays finite.
TEST(HyperConnection, ExtremeMapsStayFinite) {
  const Site site{4, 4, 3, {}};
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    TestParameters parameters = parameters_of(site, type, 3);
    parameters.weights[2].fill_(1e4);
    Tensors inputs = inputs_of(site, type, 3);
    inputs[0][1].zero_();
    const Outcome outcome = run_site(site, parameters, inputs);
    for (const Tensors& tensors : {outcome.outputs, outcome.gradients}) {
      for (const at::Tensor& tensor : tensors) EXPECT_TRUE(tensor.isfinite().all().item<bool>());
    }
  }
}

TEST(HyperConnection, KeepsStreamsAndSmallMapsOnly) {
  const Site site{13, 4, 32, {}};
  TestParameters parameters = parameters_of(site, at::kFloat, 1);
  const Tensors inputs = inputs_of(site, at::kFloat, 1);
  const Outcome outcome = run_site(site, parameters, inputs);
  // Inputs and outputs, then raw, inverse RMS, write and mix.
  const int64_t streams = site.streams * site.width;
  const int64_t a_token =
      (streams + site.width) + (streams + 2 * site.width) + site.maps() + 1 + 4 + 16;
  EXPECT_EQ(outcome.stored_bytes, site.tokens * a_token * 4);
}

TEST(HyperConnection, BitsDoNotDependOnTheNumberOfThreads) {
  for (const Site& site : {Site{5001, 4, 16, {}}, Site{7, 4, 2048, {}}}) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      TestParameters parameters = parameters_of(site, type, 5);
      const Tensors inputs = inputs_of(site, type, 6);
      at::set_num_threads(1);
      const Outcome one = run_site(site, parameters, inputs);
      for (const int threads : {2, 3}) {
        at::set_num_threads(threads);
        const Outcome more = run_site(site, parameters, inputs);
        for (size_t i = 0; i < one.outputs.size(); ++i) {
          EXPECT_TRUE(at::equal(one.outputs[i], more.outputs[i])) << i;
        }
        for (size_t i = 0; i < one.gradients.size(); ++i) {
          EXPECT_TRUE(at::equal(one.gradients[i], more.gradients[i])) << i;
        }
      }
      at::set_num_threads(1);
    }
  }
}

TEST(HyperConnection, NoTokensAtAll) {
  const Site site{0, 4, 8, {}};
  TestParameters parameters = parameters_of(site, at::kFloat, 1);
  const Outcome outcome = run_site(site, parameters, inputs_of(site, at::kFloat, 1));
  EXPECT_EQ(outcome.gradients[0].sizes(), (std::vector<int64_t>{0, 4, 8}));
  for (size_t i = 2; i < 5; ++i) EXPECT_EQ(outcome.gradients[i].abs().sum().item<float>(), 0);
}

}  // namespace
}  // namespace longspan
