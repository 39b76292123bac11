// Linear attention on a GPU against its CPU twin in float64: pieces of random stretches with all
// their gradients, the decay gate and the gated norm, whole mixes over layouts and ranks; and again
// for the same bits.
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "base/error.h"
#include "gpu_test.h"
#include "layers/kda_ops.h"
#include "layers/test_parameters.h"
#include "linear_attention/kda_piece.h"
#include "linear_attention/mix_run.h"

namespace longspan {
namespace {

using Tensors = std::vector<at::Tensor>;

// In float64, of values that the type holds.
at::Tensor rounded(RandomStream& random, std::vector<int64_t> shape, at::ScalarType type) {
  return random_tensor(random, std::move(shape), type).to(at::kDouble);
}

struct Problem {
  LinearAttentionShape shape;
  std::vector<Range> stretches;
  at::Tensor qkv, g, beta, before, weight, d_o, state_before, d_state_after;
};

// `strength`: decays are exp(-strength u), u uniform in (0, 1).
Problem make_problem(RandomStream& random, const LinearAttentionShape& shape,
                     const std::vector<int64_t>& lengths, double strength, bool with_states,
                     at::ScalarType type) {
  Problem problem;
  problem.shape = shape;
  int64_t T = 0;
  for (const int64_t length : lengths) {
    problem.stretches.push_back({T, T + length});
    T += length;
  }
  const int64_t H = shape.heads;
  const int64_t K = shape.key_width;
  const at::ScalarType sums = accumulate_type(type);
  const int64_t before_rows = with_states ? random.between(0, shape.conv_taps - 1) : 0;
  problem.qkv = rounded(random, {T, 3, H, K}, type);
  problem.g = (-strength * (random_tensor(random, {T, H, K}, at::kDouble).sigmoid()))
                  .to(sums)
                  .to(at::kDouble);
  problem.beta = random_tensor(random, {T, H}, at::kDouble).sigmoid().to(type).to(at::kDouble);
  problem.before = rounded(random, {before_rows, 3, H, K}, type);
  problem.weight = rounded(random, {3, H, shape.conv_taps, K}, type);
  problem.d_o = rounded(random, {T, H, K}, type);
  if (with_states) {
    problem.state_before = rounded(random, {H, K, K}, sums);
    problem.d_state_after = rounded(random, {H, K, K}, sums);
  }
  return problem;
}

const std::vector<std::string> kNames = {"o",  "state", "map",  "gmap",    "dqkv",
                                         "dg", "dbeta", "dbef", "dweight", "dstate"};

// All results of a piece, computed in the type on the device.
Tensors results_of(const Problem& problem, at::ScalarType type, at::Device device) {
  const auto cast = [&](const at::Tensor& values, at::ScalarType to) {
    return values.defined() ? values.to(at::TensorOptions(to).device(device)) : values;
  };
  const at::ScalarType sums = accumulate_type(type);
  const auto piece =
      make_kda_piece({problem.shape,
                      problem.stretches,
                      {cast(problem.qkv, type), cast(problem.g, sums), cast(problem.beta, type)},
                      cast(problem.before, type),
                      cast(problem.weight, type)});
  const at::Tensor d_o = cast(problem.d_o, type);
  const at::Tensor state_before = cast(problem.state_before, sums);
  const auto [o, state] = piece->forward(state_before, true);
  const KdaPiece::Gradients gradients =
      piece->backward(d_o, state_before, cast(problem.d_state_after, sums));
  Tensors all = {o,
                 state,
                 piece->map(true),
                 piece->gradient_map(d_o, true),
                 gradients.inputs.qkv_T3HK,
                 gradients.inputs.g_THK,
                 gradients.inputs.beta_TH,
                 gradients.before_N3HK,
                 gradients.weight_3HNK};
  if (state_before.defined()) all.push_back(gradients.state_before);
  return all;
}

// Errors of sums, and of what bfloat16 operands leave, as a share of a whole array. Gradients of
// decays and of beta are differences that may cancel; how far those of decays do shows in what
// float32 leaves of them on the CPU.
double bound_of(at::ScalarType type, const std::string& name, double float_error_on_cpu) {
  const double base = type == at::kBFloat16 ? 1.2e-2 : type == at::kFloat ? 2e-6 : 1e-13;
  if (name == "dbeta") return 4 * base;
  if (name != "dg") return base;
  const double roundings = type == at::kDouble ? std::pow(2.0, -29) : 1;  // beside float32's
  return std::max(4 * base, 4 * roundings * float_error_on_cpu);
}

void expect_equals_cpu(const Problem& problem, at::ScalarType type) {
  const Tensors expected = results_of(problem, at::kDouble, at::kCPU);
  const Tensors in_float = results_of(problem, at::kFloat, at::kCPU);
  const Tensors found = results_of(problem, type, kGpu);
  const Tensors again = results_of(problem, type, kGpu);
  std::ostringstream errors;
  errors << c10::toString(type) << " T " << problem.qkv.size(0) << " H " << problem.shape.heads
         << " K " << problem.shape.key_width << std::scientific << std::setprecision(1);
  for (size_t i = 0; i < found.size(); ++i) {
    const double error = error_of(found[i], expected[i]);
    errors << " " << kNames[i] << " " << error;
    EXPECT_LE(error, bound_of(type, kNames[i], error_of(in_float[i], expected[i]))) << kNames[i];
    EXPECT_TRUE(found[i].equal(again[i])) << kNames[i] << " differs on a repeat";
  }
  std::cout << errors.str() << "\n";
}

class GpuKda : public GpuTest {};

TEST_F(GpuKda, PiecesEqualTheCpus) {
  for (const at::ScalarType type : kGpuTypes) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      RandomStream random(seed, "kda pieces");
      const std::vector<int64_t> widths = {4, 20, 32, 33, 64, 128};
      const int64_t width = widths[static_cast<size_t>(random.between(0, 5))];
      const LinearAttentionShape shape{
          .heads = random.between(1, 5), .key_width = width, .value_width = width};
      std::vector<int64_t> lengths;
      for (int64_t count = random.between(1, 6); count > 0; --count) {
        lengths.push_back(random.below(3) == 0 ? random.between(1, 5) : random.between(1, 200));
      }
      const double strength = seed % 4 == 0 ? 0.05 : seed % 4 == 3 ? 60 : 5;
      SCOPED_TRACE(text("seed ", seed));
      expect_equals_cpu(make_problem(random, shape, lengths, strength, seed % 2 == 1, type), type);
    }
    RandomStream random(77, "kda pieces");
    expect_equals_cpu(make_problem(random, {.heads = 2, .key_width = 128, .value_width = 128},
                                   {1000, 3, 64}, 1, true, type),
                      type);
  }
}

TEST_F(GpuKda, WidthsAndTapsWithoutAKernelAreRefused) {
  RandomStream random(1, "kda");
  const auto run = [&](const LinearAttentionShape& shape) {
    results_of(make_problem(random, shape, {3}, 1, false, at::kFloat), at::kFloat, kGpu);
  };
  EXPECT_THROW(run({.heads = 1, .key_width = 129, .value_width = 129}), UserError);
  EXPECT_THROW(run({.heads = 1, .key_width = 8, .value_width = 8, .conv_taps = 3}), UserError);
}

// Output, gradients of inputs and of parameters of an operation.
using Operation = std::function<at::Tensor(const ParameterAccess&, const Tensors&)>;

Tensors differentiated(const Operation& operation, const Tensors& inputs, TestParameters parameters,
                       at::ScalarType type, const at::Tensor& d_output, at::Device device) {
  const at::TensorOptions sums = at::TensorOptions(accumulate_type(type)).device(device);
  for (at::Tensor& weight : parameters.weights) {
    weight = weight.to(at::TensorOptions(type).device(device));
  }
  for (at::Tensor& gradient : parameters.gradients) gradient = at::zeros(gradient.sizes(), sums);
  Tensors leaves;
  for (const at::Tensor& input : inputs) {
    leaves.push_back(input.to(at::TensorOptions(type).device(device)).requires_grad_(true));
  }
  const at::Tensor output = operation(parameters.access(), leaves);
  Tensors all = {output.detach()};
  const at::Tensor gradient = d_output.to(output.options().requires_grad(false));
  for (const at::Tensor& d_input : torch::autograd::grad({output}, leaves, {gradient})) {
    all.push_back(d_input);
  }
  for (const at::Tensor& sum : parameters.gradients) all.push_back(sum);
  return all;
}

TEST_F(GpuKda, GatesAndNormEqualTheCpus) {
  for (const at::ScalarType type : kGpuTypes) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      RandomStream random(seed, "kda rows");
      const int64_t H = random.between(1, 7);
      const int64_t K = seed % 3 == 0 ? 128 : random.between(1, 150);
      const int64_t T = random.between(1, 400);
      const Tensors inputs = {rounded(random, {T, H, K}, type), rounded(random, {T, H, K}, type)};
      const at::Tensor d_output = rounded(random, {T, H, K}, type);
      const auto check = [&](const char* name, const Operation& operation, const Tensors& in,
                             const std::vector<std::vector<int64_t>>& shapes) {
        TestParameters parameters(shapes, type, seed);
        for (at::Tensor& weight : parameters.weights) weight = weight.to(at::kDouble);
        const Tensors expected =
            differentiated(operation, in, parameters, at::kDouble, d_output, at::kCPU);
        const Tensors found = differentiated(operation, in, parameters, type, d_output, kGpu);
        std::ostringstream errors;
        errors << name << " " << c10::toString(type) << std::scientific << std::setprecision(1);
        for (size_t i = 0; i < found.size(); ++i) {
          const double error = error_of(found[i], expected[i]);
          errors << " " << error;
          EXPECT_LE(error, (i <= in.size() ? 2 : 10) * rounding_of(found[i].scalar_type()))
              << name << ", seed " << seed << ", result " << i;
        }
        std::cout << errors.str() << "\n";
      };
      for (const auto kind : {DecayGate::Kind::kBounded, DecayGate::Kind::kSoftplus}) {
        check(kind == DecayGate::Kind::kBounded ? "bounded" : "softplus",
              [kind](const ParameterAccess& access, const Tensors& in) {
                return decay_gate(access, {kind, -5}, in[0], {0, 1});
              },
              {inputs[0]}, {{H}, {H * K}});
      }
      check("norm",
            [](const ParameterAccess& access, const Tensors& in) {
              return gated_norm(access, in[0], in[1], 0, 1e-5);
            },
            inputs, {{K}});
    }
  }
}

// Errors of single roundings, of the largest of the tensors.
double mix_bound(at::ScalarType type) {
  return type == at::kBFloat16 ? 4e-2 : type == at::kFloat ? 3e-5 : 1e-10;
}

class GpuMix : public GpuTest {};

TEST_F(GpuMix, AnyLayoutOnTheGpuIsOneRankOnTheCpu) {
  for (const at::ScalarType type : kGpuTypes) {
    double worst = 0;
    for (const int ranks : {1, 2, 4}) {
      for (uint64_t seed = 0; seed < 6; ++seed) {
        RandomStream random(seed * 10 + static_cast<uint64_t>(ranks), "layouts");
        const MixProblem problem = make_mix_problem(random_documents(random), seed, type);
        const int chunks = static_cast<int>(random.between(1, 4));
        const int band = static_cast<int>(random.between(1, chunks));
        const TokenLayout layout =
            TokenLayout::from_borders(problem.documents, chunks, ranks,
                                      random_borders(random, problem.tokens(), ranks * chunks));
        const Tensors expected = run_mix_on_one_rank(problem);
        const Tensors found =
            run_mix(problem, layout, {.band = band, .type = type, .device = kGpu});
        const Tensors again =
            run_mix(problem, layout, {.band = band, .type = type, .device = kGpu});
        for (size_t i = 0; i < found.size(); ++i) {
          EXPECT_TRUE(found[i].equal(again[i])) << kMixNames[i] << " differs on a repeat";
          const double error = error_of(found[i], expected[i]);
          worst = std::max(worst, error);
          EXPECT_LE(error, mix_bound(type)) << kMixNames[i] << ", " << c10::toString(type)
                                            << ", ranks " << ranks << ", seed " << seed;
        }
      }
    }
    std::cout << "mix " << c10::toString(type) << " worst " << worst << "\n";
  }
}

}  // namespace
}  // namespace longspan
