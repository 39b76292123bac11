// The GPU kernels of hybrid models' residual streams, routers and experts against their twins on
// CPU in float64, over random ragged shapes and all types, and again for the same bits. What was
// the largest error of each result is printed, and the time of each at the widths of
// glm53_flash_mini.
#include <ATen/ATen.h>

#include <chrono>
#include <cmath>
#include <iostream>
#include <map>
#include <sstream>

#include "base/error.h"
#include "device/device_timer.h"
#include "experts/expert_case.h"
#include "gpu_test.h"
#include "layers/hyper_connection.h"
#include "layers/router.h"
#include "layers/row_ops.h"
#include "layers/segment.h"
#include "layers/test_parameters.h"

namespace longspan {
namespace {

using Tensors = std::vector<at::Tensor>;

class GpuHybridOps : public GpuTest {
 protected:
  void TearDown() override {
    for (const auto& [name, worst] : worst_) {
      std::cout << "largest error, " << name << ": " << worst.first << " of " << worst.second
                << " allowed\n";
    }
  }

  void expect_near(const std::string& name, at::ScalarType type, const at::Tensor& found,
                   const at::Tensor& expected, double bound) {
    const double error = error_of(found, expected);
    EXPECT_LE(error, bound) << name << " " << c10::toString(type);
    auto& worst = worst_[text(name, " ", c10::toString(type))];
    if (!(error <= worst.first)) worst.first = error;
    worst.second = bound;
  }

 private:
  std::map<std::string, std::pair<double, double>> worst_;
};

at::Tensor rounded(RandomStream& random, std::vector<int64_t> shape, at::ScalarType type) {
  return random_tensor(random, std::move(shape), type).to(at::kDouble);
}

at::Tensor on_gpu(const at::Tensor& values, at::ScalarType type) {
  return values.to(at::TensorOptions(type).device(kGpu));
}

// The same weights in float64 on CPU and on the GPU, those that keep their type apart.
struct BothParameters {
  TestParameters cpu{{}, at::kDouble, 0};
  TestParameters gpu{{}, at::kDouble, 0};

  void add(const at::Tensor& values, at::ScalarType type) {
    cpu.weights.push_back(values);
    cpu.gradients.push_back(at::ones_like(values));
    gpu.weights.push_back(on_gpu(values, type));
    gpu.gradients.push_back(on_gpu(at::ones_like(values), accumulate_type(type)));
  }
};

// ---- hyper-connections

struct SiteOutcome {
  Tensors outputs;  // streams after, x_in, mean
  Tensors input_gradients;
};

SiteOutcome through_site(const ParameterAccess& access, const HyperOptions& options,
                         const Tensors& inputs, const Tensors& output_gradients) {
  Segment segment = Segment::record(
      [&](const Tensors& in) {
        const HyperRead read = hyper_read(access, in[0], {0, 1, 2}, options);
        const at::Tensor after = hyper_write(in[0], in[1], read.write, read.mix);
        return Tensors{after, read.x_in, streams_mean(after)};
      },
      inputs);
  SiteOutcome outcome{segment.outputs(), {}};
  outcome.input_gradients = segment.backward(output_gradients);
  return outcome;
}

TEST_F(GpuHybridOps, HyperConnection) {
  for (const at::ScalarType type : kGpuTypes) {
    const at::ScalarType sums = accumulate_type(type);
    const double row_bound = 4 * rounding_of(type);
    // A Sinkhorn gradient cancels, and so do sums over tokens. They begin with the gradient of the
    // streams after, which the graph adds up in the run's type.
    const double sum_bound = 100 * rounding_of(sums) + (type == at::kBFloat16 ? row_bound : 0);
    for (uint64_t seed = 0; seed < 24; ++seed) {
      RandomStream random(seed, "hyper-connection");
      const int64_t tokens =
          random.below(4) == 0 ? random.between(250, 700) : random.between(1, 60);
      const int64_t streams = random.below(3) == 0 ? 2 : 4;
      const int64_t width =
          random.below(2) == 0 ? 8 * random.between(1, 90) : random.between(1, 300);
      const HyperOptions options{.sinkhorn_rounds =
                                     random.below(2) == 0 ? 20 : random.between(1, 32)};
      const int64_t maps = streams * (streams + 2);
      SCOPED_TRACE(text("seed ", seed, ": ", tokens, " x ", streams, " x ", width, ", rounds ",
                        options.sinkhorn_rounds, ", ", c10::toString(type)));
      BothParameters parameters;
      const double spread = 1 / std::sqrt(static_cast<double>(streams * width));
      parameters.add(
          (rounded(random, {maps, streams * width}, type) * spread).to(type).to(at::kDouble), type);
      parameters.add(rounded(random, {maps}, sums), sums);
      parameters.add(rounded(random, {3}, sums), sums);
      const Tensors inputs = {rounded(random, {tokens, streams, width}, type),
                              rounded(random, {tokens, width}, type)};
      const Tensors outer = {rounded(random, {tokens, streams, width}, type),
                             rounded(random, {tokens, width}, type),
                             rounded(random, {tokens, width}, type)};
      const SiteOutcome expected = through_site(parameters.cpu.access(), options, inputs, outer);
      const auto run = [&] {
        for (size_t i = 0; i < 3; ++i) parameters.gpu.gradients[i].fill_(1);
        const auto there = [&](const Tensors& all) {
          Tensors moved;
          for (const at::Tensor& tensor : all) moved.push_back(on_gpu(tensor, type));
          return moved;
        };
        SiteOutcome outcome =
            through_site(parameters.gpu.access(), options, there(inputs), there(outer));
        for (const at::Tensor& gradient : parameters.gpu.gradients) {
          outcome.input_gradients.push_back(gradient.clone());
        }
        return outcome;
      };
      const SiteOutcome found = run();
      const char* const outputs[] = {"streams after", "x_in", "mean of streams"};
      for (size_t i = 0; i < 3; ++i) {
        expect_near(outputs[i], type, found.outputs[i], expected.outputs[i], row_bound);
      }
      expect_near("streams' gradient", type, found.input_gradients[0], expected.input_gradients[0],
                  row_bound);
      expect_near("y's gradient", type, found.input_gradients[1], expected.input_gradients[1],
                  row_bound);
      expect_near("fn's gradient", type, found.input_gradients[2], parameters.cpu.gradients[0],
                  row_bound + sum_bound);
      expect_near("base's gradient", type, found.input_gradients[3], parameters.cpu.gradients[1],
                  sum_bound);
      expect_near("scale's gradient", type, found.input_gradients[4], parameters.cpu.gradients[2],
                  sum_bound);
      const SiteOutcome again = run();
      for (size_t i = 0; i < found.input_gradients.size(); ++i) {
        EXPECT_TRUE(found.input_gradients[i].equal(again.input_gradients[i])) << "result " << i;
      }
      if (HasFailure()) return;
    }
  }
}

TEST_F(GpuHybridOps, UnusualNumbersOfStreamsAreRefused) {
  BothParameters parameters;
  parameters.add(at::zeros({15, 12}, at::kDouble), at::kDouble);
  parameters.add(at::zeros({15}, at::kDouble), at::kDouble);
  parameters.add(at::zeros({3}, at::kDouble), at::kDouble);
  EXPECT_THROW(
      hyper_read(parameters.gpu.access(),
                 at::zeros({2, 3, 4}, at::TensorOptions(at::kDouble).device(kGpu)), {0, 1, 2}, {}),
      UserError);
}

// ---- router

struct RouterOutcome {
  Routing routing;
  at::Tensor dx;
};

RouterOutcome through_router(const ParameterAccess& access, const RouterOptions& options,
                             const at::Tensor& x, const at::Tensor& kept, const at::Tensor& outer) {
  RouterOutcome outcome;
  Segment segment = Segment::record(
      [&](const Tensors& in) {
        outcome.routing = route(access, in[0], {0, 1}, options, kept);
        return Tensors{outcome.routing.weights_TK};
      },
      {x});
  outcome.dx = segment.backward({outer})[0];
  return outcome;
}

// How much the worst chosen expert falls behind the best one left out; negative: rightly chosen.
double worst_choice(const at::Tensor& ranking_TE, const at::Tensor& ids_TK) {
  const at::Tensor ids = ids_TK.cpu().to(at::kLong);
  const at::Tensor worst = std::get<0>(ranking_TE.gather(1, ids).min(1));
  const at::Tensor left = ranking_TE.scatter(1, ids, -1e9);
  return (std::get<0>(left.max(1)) - worst).max().item<double>();
}

TEST_F(GpuHybridOps, Router) {
  for (const at::ScalarType type : kGpuTypes) {
    const at::ScalarType sums = accumulate_type(type);
    for (uint64_t seed = 0; seed < 24; ++seed) {
      RandomStream random(seed, "router");
      const int64_t experts =
          random.below(2) == 0 ? random.between(1, 40) : random.between(40, 1024);
      const int64_t width = random.between(1, 200);
      const int64_t tokens = random.between(1, 500);
      RouterOptions options{.top_k = random.between(1, std::min<int64_t>(experts, 32)),
                            .scale = 2.5};
      // The normalized weight of a single expert is constant: its gradient is rounding alone.
      options.normalized = options.top_k > 1 && random.below(3) != 0;
      SCOPED_TRACE(text("seed ", seed, ": ", tokens, " x ", width, ", ", options.top_k, " of ",
                        experts, ", ", c10::toString(type)));
      BothParameters parameters;
      parameters.add(
          (rounded(random, {experts, width}, type) / std::sqrt(static_cast<double>(width)))
              .to(type)
              .to(at::kDouble),
          type);
      parameters.add(rounded(random, {experts}, sums) * 0.25, sums);
      const at::Tensor x = rounded(random, {tokens, width}, type);
      const at::Tensor outer = rounded(random, {tokens, options.top_k}, sums);
      const RouterOutcome found = through_router(parameters.gpu.access(), options, on_gpu(x, type),
                                                 {}, on_gpu(outer, sums));
      const at::Tensor ids = found.routing.ids_TK.cpu();
      if (options.top_k > 1) {
        EXPECT_GT((ids.narrow(1, 1, options.top_k - 1) - ids.narrow(1, 0, options.top_k - 1))
                      .min()
                      .item<int32_t>(),
                  0)
            << "ids ascend";
      }
      const at::Tensor ranking =
          at::sigmoid(at::mm(x, parameters.cpu.weights[0].t())) + parameters.cpu.weights[1];
      EXPECT_LE(worst_choice(ranking, ids), sums == at::kFloat ? 1e-5 : 1e-13);
      const RouterOutcome expected =
          through_router(parameters.cpu.access(), options, x, ids, outer);
      expect_near("weights", type, found.routing.weights_TK, expected.routing.weights_TK,
                  10 * rounding_of(sums));
      expect_near("x's gradient", type, found.dx, expected.dx,
                  rounding_of(type) + 30 * rounding_of(sums));
      expect_near("router's gradient", type, parameters.gpu.gradients[0],
                  parameters.cpu.gradients[0], 30 * rounding_of(sums));
      if (HasFailure()) return;
    }
  }
}

// Logits from a few small numbers: most scores occur several times.
TEST_F(GpuHybridOps, EqualScoresGoToTheLowerExpert) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    RandomStream random(seed, "ties");
    const int64_t experts = random.between(2, 400);
    const RouterOptions options{.top_k = random.between(1, std::min<int64_t>(experts, 32))};
    BothParameters parameters;
    at::Tensor weight = at::empty({experts, 1}, at::kDouble);
    for (int64_t e = 0; e < experts; ++e) {
      weight.mutable_data_ptr<double>()[e] = static_cast<double>(random.between(-3, 3));
    }
    parameters.add(weight, at::kFloat);
    const at::Tensor x = rounded(random, {50, 1}, at::kBFloat16);
    const at::Tensor expected = route(parameters.cpu.access(), x, {0, -1}, options, {}).ids_TK;
    const at::Tensor found =
        route(parameters.gpu.access(), on_gpu(x, at::kFloat), {0, -1}, options, {}).ids_TK;
    EXPECT_TRUE(found.cpu().equal(expected)) << "seed " << seed;
  }
}

// ---- SwiGLU with a limit, experts

TEST_F(GpuHybridOps, SwigluWithALimit) {
  constexpr double kLimit = 1.5;
  for (const at::ScalarType type : kGpuTypes) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      RandomStream random(seed, "limited swiglu");
      const std::vector<int64_t> shape = {random.between(1, 60), random.between(1, 300)};
      const at::Tensor gate = rounded(random, shape, type) * 2;
      const at::Tensor up = rounded(random, shape, type) * 2;
      const at::Tensor dy = rounded(random, shape, type);
      expect_near("y", type, swiglu(on_gpu(gate, type), on_gpu(up, type), kLimit),
                  swiglu(gate, up, kLimit), rounding_of(type));
      const at::Tensor dup = dy.clone();
      const SwigluGradient expected = swiglu_backward(gate, up, dup, kLimit);
      const at::Tensor gpu_dup = on_gpu(dy, type);
      const SwigluGradient found =
          swiglu_backward(on_gpu(gate, type), on_gpu(up, type), gpu_dup, kLimit);
      expect_near("y again", type, found.y, expected.y, rounding_of(type));
      expect_near("dgate", type, found.dgate, expected.dgate, 2 * rounding_of(type));
      expect_near("dup", type, gpu_dup, dup, rounding_of(type));
    }
  }
}

ExpertCase random_experts(uint64_t seed, at::ScalarType type) {
  RandomStream random(seed, "GPU experts");
  ExpertCase c{.seed = seed, .values = type};
  c.ranks = random.below(2) == 0 ? 1 : 4;
  c.top_k = random.between(1, 6);
  c.tokens = random.below(6) == 0 ? 0 : random.between(1, 200);
  c.bound = random.below(2) == 0 ? 1 << 20 : 64;
  c.skew = static_cast<Skew>(random.below(3));
  c.idle_experts = random.below(2) == 0 ? 0 : 12;
  c.empty_rank = random.below(3) == 0;
  // Grouped products need multiples of 8.
  const bool fits = random.below(3) != 0;
  c.width = fits ? 8 * random.between(1, 12) : random.between(1, 40);
  c.expert_width = fits ? 8 * random.between(1, 12) : random.between(1, 40);
  // A rounded number beside the limit may fall on its other side, where gradients are others.
  if (type == at::kBFloat16) c.limit = 1e6;
  return c;
}

TEST_F(GpuHybridOps, Experts) {
  for (const at::ScalarType type : kGpuTypes) {
    for (uint64_t seed = 0; seed < 24; ++seed) {
      const ExpertCase c = random_experts(seed, type);
      std::ostringstream name;
      name << c << ", " << c.width << " x " << c.expert_width << ", " << c10::toString(type);
      SCOPED_TRACE(name.str());
      const ExpertOutcome expected = run_expert_case(c);
      const ExpertOutcome found = run_expert_case(c, {type, kGpu});
      // gate and up, the activation, the product, the sum; in backward da and its factors besides.
      const double bound = 6 * rounding_of(type) + (type == at::kFloat ? 1e-5 : 0);
      expect_near("experts' y", type, found.y, expected.y, bound);
      expect_near("experts' dx", type, found.dx, expected.dx, bound);
      expect_near("gradient of weights", type, found.dweights, expected.dweights, bound);
      expect_near("gate's gradient", type, found.gradients.gate_eFD, expected.gradients.gate_eFD,
                  bound);
      expect_near("up's gradient", type, found.gradients.up_eFD, expected.gradients.up_eFD, bound);
      expect_near("down's gradient", type, found.gradients.down_eDF, expected.gradients.down_eDF,
                  bound);
      const ExpertOutcome again = run_expert_case(c, {type, kGpu});
      EXPECT_TRUE(again.y.equal(found.y));
      EXPECT_TRUE(again.dx.equal(found.dx));
      EXPECT_TRUE(again.gradients.down_eDF.equal(found.gradients.down_eDF));
      EXPECT_TRUE(again.gradients.gate_eFD.equal(found.gradients.gate_eFD));
      if (HasFailure()) return;
    }
  }
}

// ---- times

void print_time(const std::string& name, double bytes, double flops,
                const std::function<void()>& work) {
  constexpr int kRepeats = 5;
  work();
  finish_work(kGpu);
  std::vector<double> seconds;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    DeviceTimer timer(kGpu);
    timer.start();
    work();
    timer.stop();
    finish_work(kGpu);
    seconds.push_back(timer.take_seconds());
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[kRepeats / 2];
  std::cout << "time, " << name << ": " << median * 1e3 << " ms";
  if (bytes > 0) std::cout << ", " << bytes / median * 1e-12 << " TB/s of least traffic";
  if (flops > 0) std::cout << ", " << flops / median * 1e-12 << " TFLOP/s";
  std::cout << "\n";
}

at::Tensor random_on_gpu(std::vector<int64_t> shape, at::ScalarType type, double spread = 1) {
  return at::randn(shape, at::TensorOptions(at::kFloat).device(kGpu)).mul_(spread).to(type);
}

constexpr int64_t kSpeedTokens = 16384;
constexpr int64_t kSpeedWidth = 4096;

TEST_F(GpuHybridOps, TimesOfStreamsAndRouter) {
  const auto type = at::kBFloat16;
  TestParameters parameters({}, at::kFloat, 0);
  const auto add = [&](const at::Tensor& weight) {
    parameters.weights.push_back(weight);
    parameters.gradients.push_back(at::zeros(weight.sizes(), weight.options().dtype(at::kFloat)));
  };
  add(random_on_gpu({24, 4 * kSpeedWidth}, type, 1.0 / 128));
  add(random_on_gpu({24}, at::kFloat));
  add(random_on_gpu({3}, at::kFloat));
  add(random_on_gpu({288, kSpeedWidth}, type, 1.0 / 64));
  add(random_on_gpu({288}, at::kFloat, 0.1));
  const ParameterAccess access = parameters.access();
  const at::Tensor streams = random_on_gpu({kSpeedTokens, 4, kSpeedWidth}, type);
  const at::Tensor y = random_on_gpu({kSpeedTokens, kSpeedWidth}, type);
  const HyperRead read = hyper_read(access, streams, {0, 1, 2}, {});
  const double row = 2.0 * kSpeedTokens * kSpeedWidth;  // bytes of one number a token and column
  print_time("streams read forward", 5 * row, 0, [&] {
    hyper_read(access, streams, {0, 1, 2}, {});
  });
  print_time("streams write forward", 9 * row, 0,
             [&] { hyper_write(streams, y, read.write, read.mix); });
  const auto timed_backward = [&](const std::string& name, double bytes, const Segment::Body& body,
                                  const Tensors& inputs, const Tensors& outer) {
    print_time(name, bytes, 0, [&] { Segment::record(body, inputs).backward(outer); });
  };
  timed_backward("streams read forward and backward", 14 * row,
                 [&](const Tensors& in) {
                   const HyperRead made = hyper_read(access, in[0], {0, 1, 2}, {});
                   return Tensors{made.x_in, made.write, made.mix};
                 },
                 {streams}, {y, at::ones_like(read.write), at::ones_like(read.mix)});
  timed_backward(
      "streams write forward and backward", 23 * row,
      [&](const Tensors& in) { return Tensors{hyper_write(in[0], in[1], in[2], in[3])}; },
      {streams, y, read.write, read.mix}, {streams});
  const RouterOptions options{.top_k = 8, .scale = 2.5};
  print_time("router forward, 8 of 288", row, 0, [&] { route(access, y, {3, 4}, options, {}); });
  timed_backward("router forward and backward", 3 * row,
                 [&](const Tensors& in) {
                   return Tensors{route(access, in[0], {3, 4}, options, {}).weights_TK};
                 },
                 {y}, {random_on_gpu({kSpeedTokens, 8}, at::kFloat)});
}

TEST_F(GpuHybridOps, TimesOfExperts) {
  constexpr int64_t kExperts = 16;
  constexpr int64_t kChosen = 8;
  constexpr int64_t kExpertWidth = 2048;
  const auto type = at::kBFloat16;
  const ExpertWeights weights = {
      random_on_gpu({kExperts, kExpertWidth, kSpeedWidth}, type, 1.0 / 64),
      random_on_gpu({kExperts, kExpertWidth, kSpeedWidth}, type, 1.0 / 64),
      random_on_gpu({kExperts, kSpeedWidth, kExpertWidth}, type, 1.0 / 45)};
  const auto zeros = [](const at::Tensor& like) {
    return at::zeros(like.sizes(), like.options().dtype(at::kFloat));
  };
  const ExpertWeightGradients gradients = {zeros(weights.gate_eFD), zeros(weights.up_eFD),
                                           zeros(weights.down_eDF)};
  RandomStream random(1, "speed of experts");
  const ExpertCase c{.experts = kExperts, .top_k = kChosen, .tokens = kSpeedTokens};
  const at::Tensor ids = draw_choices(c, random);
  const ExpertInputs inputs = {random_on_gpu({kSpeedTokens, kSpeedWidth}, type),
                               random_on_gpu({kSpeedTokens, kChosen}, at::kFloat)};
  const at::Tensor dy = random_on_gpu({kSpeedTokens, kSpeedWidth}, type);
  const double flops = 6.0 * kSpeedTokens * kChosen * kSpeedWidth * kExpertWidth;
  for (const int64_t bound : {16384, 65536, 131072}) {
    const ExpertExchange exchange({.group = {kExperts, kChosen, 1, bound}, .limit = 10}, nullptr);
    const ExpertDispatch dispatch = exchange.dispatch({0, "experts"}, ids);
    const auto start = std::chrono::steady_clock::now();
    exchange.dispatch({0, "experts"}, ids);
    const double dispatch_s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::cout << "time, dispatch on the host: " << dispatch_s * 1e3 << " ms\n";
    print_time(text("experts forward, chunks of ", bound, " pairs"), 0, flops, [&] {
      exchange.forward({0, "experts"}, dispatch, inputs, weights);
    });
    print_time(text("experts backward, chunks of ", bound, " pairs"), 0, 3 * flops, [&] {
      exchange.backward({0, "experts"}, dispatch, inputs, dy, weights, gradients);
    });
  }
}

}  // namespace
}  // namespace longspan
