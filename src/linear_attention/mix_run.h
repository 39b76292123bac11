// For tests: linear attention over a layout, as the executor runs a mix, on the CPU or a GPU.
//
//   const MixProblem problem = make_mix_problem({70, 3, 200}, seed);
//   Tensors results = run_mix(problem, layout, {.band = 2});       // in the order of kMixNames
//
// Ranks are threads. Results are those of the whole line, in float64 on the CPU.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/run_ranks.h"
#include "device/device.h"
#include "layers/test_parameters.h"
#include "linear_attention/linear_attention_mix.h"

namespace longspan {

inline constexpr int64_t kMixTestLayer = 2;

// In float64, of values that the type holds.
struct MixProblem {
  LinearAttentionShape shape{.heads = 3, .key_width = 4, .value_width = 4};
  std::vector<int64_t> documents;
  std::vector<at::Tensor> inputs;  // of the whole line: qkv, g, beta
  at::Tensor d_output;
  at::ScalarType type = at::kDouble;
  uint64_t seed = 0;

  int64_t tokens() const { return inputs[0].size(0); }
  TestParameters parameters() const {
    const std::vector<int64_t> weight = {shape.heads * shape.key_width, 1, shape.conv_taps};
    return TestParameters({weight, weight, weight}, type, seed);
  }
};

inline MixProblem make_mix_problem(std::vector<int64_t> documents, uint64_t seed,
                                   at::ScalarType type = at::kDouble) {
  RandomStream random(seed, "linear attention test");
  MixProblem problem;
  problem.seed = seed;
  problem.type = type;
  problem.documents = std::move(documents);
  int64_t T = 0;
  for (const int64_t tokens : problem.documents) T += tokens;
  const int64_t H = problem.shape.heads;
  const int64_t K = problem.shape.key_width;
  const auto rounded = [](const at::Tensor& values, at::ScalarType to) {
    return values.to(to).to(at::kDouble);
  };
  problem.inputs = {
      rounded(random_tensor(random, {T, 3, H, K}), type),
      rounded(-5 * (random_tensor(random, {T, H, K}) - 2).sigmoid(), accumulate_type(type)),
      rounded(random_tensor(random, {T, H}).sigmoid(), type)};
  problem.d_output = rounded(random_tensor(random, {T, H, K}), type);
  return problem;
}

// Outputs and gradients of the whole line, as run_mix gives them.
inline const std::vector<std::string> kMixNames = {"output", "qkv",    "decay", "beta",
                                                   "q conv", "k conv", "v conv"};

struct MixRunOptions {
  int band = 1;
  int threads = 1;  // of each rank
  at::ScalarType type = at::kDouble;
  at::Device device = at::kCPU;
};

// What the executor does with a mix on one rank: bands of chunks forward, keeping what later bands
// need; then backward, each band again forward before it.
class MixRankRun {
 public:
  MixRankRun(const MixProblem& problem, const LinearAttentionMix& mix, const TokenLayout& layout,
             const MixRunOptions& options, Communicator& comm, TestParameters& parameters)
      : problem_(problem),
        mix_(mix),
        layout_(layout),
        options_(options),
        comm_(comm),
        parameters_(parameters),
        outputs_(static_cast<size_t>(layout.num_chunks())),
        contexts_(outputs_.size()),
        gradients_(outputs_.size()) {}

  void run(std::vector<at::Tensor>& results) {
    const int chunks = layout_.num_chunks();
    for (int first = 0; first < chunks; first += options_.band) {
      const int end = std::min(chunks, first + options_.band);
      forward(first, end);
      for (int chunk = first; chunk < end && end < chunks; ++chunk) {
        MixContext& context = contexts_[index(chunk)];
        context = mix_.carry(call(chunk), context, end);
        outputs_[index(chunk)].clear();
      }
    }
    const int last = (chunks - 1) / options_.band * options_.band;
    for (int first = last; first >= 0; first -= options_.band) {
      const int end = std::min(chunks, first + options_.band);
      if (first != last) forward(first, end);
      for (int chunk = 0; chunk < end; ++chunk) {
        MixContextGradient& gradient = gradients_[index(chunk)];
        const bool again = first <= chunk && end < chunks;
        if (first == last || again) {
          gradient =
              mix_.zero_gradient(call(chunk), contexts_[index(chunk)], again ? &gradient : nullptr);
        }
      }
      for (int chunk = end - 1; chunk >= first; --chunk) backward(chunk, results);
    }
  }

 private:
  static size_t index(int chunk) { return static_cast<size_t>(chunk); }

  MixCall call(int chunk) {
    return {parameters_.access(),
            kMixTestLayer,
            &layout_,
            chunk,
            &comm_,
            1000 * chunk,
            text("linear attention, chunk ", chunk)};
  }

  at::Tensor own(const at::Tensor& of_line, at::ScalarType type, int chunk) const {
    const Range piece = layout_.piece(chunk, comm_.rank());
    const at::TensorOptions options = at::TensorOptions(type).device(options_.device);
    return of_line.narrow(0, piece.begin, piece.size()).to(options, false, /*copy=*/true);
  }

  std::vector<at::Tensor> own_inputs(int chunk) const {
    const at::ScalarType type = options_.type;
    return {own(problem_.inputs[0], type, chunk),
            own(problem_.inputs[1], accumulate_type(type), chunk),
            own(problem_.inputs[2], type, chunk)};
  }

  void forward(int first, int end) {
    for (int chunk = first; chunk < end; ++chunk) {
      std::vector<const MixContext*> earlier;
      for (int before = 0; before < chunk; ++before) earlier.push_back(&contexts_[index(before)]);
      std::vector<at::Tensor> choices;
      MixOutput output = mix_.forward(call(chunk), own_inputs(chunk), earlier, choices);
      contexts_[index(chunk)] = std::move(output.context);
      outputs_[index(chunk)] = std::move(output.tensors);
    }
  }

  void backward(int chunk, std::vector<at::Tensor>& results) {
    MixBackwardInputs given;
    given.inputs = own_inputs(chunk);
    given.output = outputs_[index(chunk)];
    given.output_gradient = own(problem_.d_output, options_.type, chunk);
    for (int before = 0; before <= chunk; ++before) {
      given.contexts.push_back(&contexts_[index(before)]);
      given.gradients.push_back(&gradients_[index(before)]);
    }
    const std::vector<at::Tensor> d_inputs = mix_.backward(call(chunk), given);
    const Range piece = layout_.piece(chunk, comm_.rank());
    // Ranks write disjoint rows.
    results[0].narrow(0, piece.begin, piece.size()).copy_(given.output[0]);
    for (size_t i = 0; i < d_inputs.size(); ++i) {
      results[i + 1].narrow(0, piece.begin, piece.size()).copy_(d_inputs[i]);
    }
  }

  const MixProblem& problem_;
  const LinearAttentionMix& mix_;
  const TokenLayout& layout_;
  MixRunOptions options_;
  Communicator& comm_;
  TestParameters& parameters_;
  std::vector<std::vector<at::Tensor>> outputs_;
  std::vector<MixContext> contexts_;
  std::vector<MixContextGradient> gradients_;
};

inline std::vector<at::Tensor> run_mix(const MixProblem& problem, const TokenLayout& layout,
                                       const MixRunOptions& options) {
  const LinearAttentionMix mix(problem.shape, {{kMixTestLayer, {0, 1, 2}}});
  std::vector<at::Tensor> results = {at::full_like(problem.d_output, NAN)};
  for (const at::Tensor& input : problem.inputs) results.push_back(at::full_like(input, NAN));
  std::vector<TestParameters> parameters;
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    parameters.push_back(problem.parameters());
    for (at::Tensor& weight : parameters.back().weights) {
      weight = weight.to(at::TensorOptions(options.type).device(options.device));
    }
    for (at::Tensor& gradient : parameters.back().gradients) {
      gradient =
          gradient.to(at::TensorOptions(accumulate_type(options.type)).device(options.device));
    }
  }
  run_ranks(layout.num_ranks(),
            {.stall_timeout_s = 60, .device_memory = device_memory(options.device)},
            [&](Communicator& comm) {
              const DeviceThread on(options.device);
              at::set_num_threads(options.threads);
              MixRankRun(problem, mix, layout, options, comm,
                         parameters[static_cast<size_t>(comm.rank())])
                  .run(results);
              finish_work(options.device);
            });
  for (size_t i = 0; i < 3; ++i) {
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (const TestParameters& of_rank : parameters) {
      sum = sum + of_rank.gradients[i].to(at::kCPU, at::kDouble);
    }
    results.push_back(sum);
  }
  return results;
}

inline std::vector<at::Tensor> run_mix_on_one_rank(const MixProblem& problem) {
  return run_mix(problem, TokenLayout::make(problem.documents, {}), {});
}

inline std::vector<int64_t> random_documents(RandomStream& random) {
  const std::vector<int64_t> lengths = {1, 2, 3, 4, 5, 17, 63, 64, 65, 130, 200};
  std::vector<int64_t> documents;
  for (int64_t count = random.between(1, 6); count > 0; --count) {
    documents.push_back(
        lengths[static_cast<size_t>(random.between(0, static_cast<int64_t>(lengths.size()) - 1))]);
  }
  return documents;
}

// Borders of any kind: spread out, or many of them within a few tokens, so that pieces of one or
// two tokens and empty ones stand in a row.
inline std::vector<int64_t> random_borders(RandomStream& random, int64_t tokens, int pieces) {
  std::vector<int64_t> borders = {0, tokens};
  const bool crowded = random.uniform() < 0.5;
  const int64_t center = random.between(0, tokens);
  while (static_cast<int>(borders.size()) < pieces + 1) {
    const int64_t near = std::clamp<int64_t>(center + random.between(-4, 4), 0, tokens);
    borders.push_back(crowded && random.uniform() < 0.8 ? near : random.between(0, tokens));
  }
  std::sort(borders.begin(), borders.end());
  return borders;
}

}  // namespace longspan
