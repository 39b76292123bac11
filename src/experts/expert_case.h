// For tests: a mixture of experts over a group of ranks as threads, with random tokens and choices
// of a given skew; what the group computes, put together again.
//
//   const ExpertCase c{.seed = 3, .ranks = 4, .top_k = 2, .tokens = 100};
//   const ExpertOutcome found = run_expert_case(c);     // on 4 threads
//
// Everything is drawn for the whole line of tokens and all experts, then dealt to ranks, so that
// the numbers do not depend on how. Results come back in float64. Main thread only.
#pragma once

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include <ostream>

#include "base/random.h"
#include "comm/run_ranks.h"
#include "device/device.h"
#include "experts/expert_exchange.h"
#include "layers/test_parameters.h"

namespace longspan {

enum class Skew { kUniform, kFourfold, kOneExpert };

struct ExpertCase {
  uint64_t seed = 0;
  int ranks = 1;
  int64_t experts = 24;
  int64_t top_k = 1;
  int64_t tokens = 0;
  int64_t bound = 1 << 20;  // of pairs in a chunk
  Skew skew = Skew::kUniform;
  int64_t idle_experts = 0;  // the first ones, which nobody chooses
  bool empty_rank = false;   // rank 0 has no tokens
  int64_t width = 5;         // of the model
  int64_t expert_width = 4;
  double limit = 1.5;                   // of SwiGLU
  at::ScalarType values = at::kDouble;  // to which all numbers are rounded
};

// Where and in which type a case runs.
struct ExpertRun {
  at::ScalarType type = at::kDouble;
  at::Device device = at::kCPU;
};

inline std::ostream& operator<<(std::ostream& out, const ExpertCase& c) {
  return out << "seed " << c.seed << ", ranks " << c.ranks << ", top_k " << c.top_k << ", tokens "
             << c.tokens << ", bound " << c.bound << ", skew " << static_cast<int>(c.skew)
             << ", rank without tokens " << c.empty_rank;
}

struct ExpertData {
  at::Tensor x_TD, weights_TK, dy_TD, ids_TK;
  ExpertWeights experts;
};

inline at::Tensor draw_choices(const ExpertCase& c, RandomStream& random) {
  at::Tensor ids = at::empty({c.tokens, c.top_k}, at::kInt);
  int32_t* values = ids.mutable_data_ptr<int32_t>();
  for (int64_t token = 0; token < c.tokens; ++token) {
    std::vector<int32_t> chosen;
    if (c.skew == Skew::kOneExpert) chosen.push_back(15);
    while (std::ssize(chosen) < c.top_k) {
      int64_t id = random.between(c.idle_experts, c.experts - 1);
      // Every other draw falls on four experts: about four times the mean load and more.
      if (c.skew == Skew::kFourfold && random.below(2) == 0)
        id = c.idle_experts + random.between(0, 3);
      const auto expert = static_cast<int32_t>(id);
      if (std::find(chosen.begin(), chosen.end(), expert) == chosen.end()) chosen.push_back(expert);
    }
    std::copy(chosen.begin(), chosen.end(), values + token * c.top_k);
  }
  return ids;
}

inline ExpertData draw_data(const ExpertCase& c) {
  RandomStream random(c.seed, "experts");
  const auto drawn = [&](std::vector<int64_t> shape) {
    return random_tensor(random, std::move(shape), c.values).to(at::kDouble);
  };
  ExpertData data;
  data.x_TD = drawn({c.tokens, c.width});
  data.weights_TK = drawn({c.tokens, c.top_k});
  data.dy_TD = drawn({c.tokens, c.width});
  data.experts = {drawn({c.experts, c.expert_width, c.width}),
                  drawn({c.experts, c.expert_width, c.width}),
                  drawn({c.experts, c.width, c.expert_width})};
  data.ids_TK = draw_choices(c, random);
  return data;
}

// Where each rank's tokens begin; ragged, some ranks may have none.
inline std::vector<int64_t> token_cuts(const ExpertCase& c) {
  RandomStream random(c.seed, "cuts", static_cast<uint64_t>(c.ranks));
  std::vector<int64_t> cuts = {0};
  for (int rank = 1; rank < c.ranks; ++rank) {
    cuts.push_back(c.empty_rank && rank == 1 ? 0 : random.between(0, c.tokens));
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.push_back(c.tokens);
  return cuts;
}

struct ExpertOutcome {
  at::Tensor y, dx, dweights;
  ExpertWeightGradients gradients;
  int64_t chunks = 0;
  int64_t pairs_per_chunk = 0;
};

inline ExpertOutcome run_on_rank(const ExpertCase& c, const ExpertData& data, Communicator* group,
                                 const ExpertRun& run) {
  const ExpertExchange exchange({.group = {c.experts, c.top_k, c.ranks, c.bound}, .limit = c.limit},
                                group);
  const at::TensorOptions rows = at::TensorOptions(run.type).device(run.device);
  const at::TensorOptions sums = rows.dtype(accumulate_type(run.type));
  const auto rank = static_cast<size_t>(group != nullptr ? group->rank() : 0);
  const std::vector<int64_t> cuts = token_cuts(c);
  auto own_tokens = [&](const at::Tensor& all) {
    return all.narrow(0, cuts[rank], cuts[rank + 1] - cuts[rank]).contiguous();
  };
  const Range own = exchange.own_experts();
  auto own_experts = [&](const at::Tensor& all) {
    return all.narrow(0, own.begin, own.size()).to(rows);
  };
  const ExpertWeights weights = {own_experts(data.experts.gate_eFD),
                                 own_experts(data.experts.up_eFD),
                                 own_experts(data.experts.down_eDF)};
  // What stands in an accumulator stays there.
  auto ones = [&](const at::Tensor& like) { return at::full(like.sizes(), 1.0, sums); };
  const ExpertWeightGradients gradients = {ones(weights.gate_eFD), ones(weights.up_eFD),
                                           ones(weights.down_eDF)};
  const ExpertInputs inputs = {own_tokens(data.x_TD).to(rows),
                               own_tokens(data.weights_TK).to(sums)};
  const ExpertDispatch dispatch = exchange.dispatch({0, "experts"}, own_tokens(data.ids_TK));
  const at::Tensor y = exchange.forward({0, "experts forward"}, dispatch, inputs, weights);
  const ExpertInputGradients d =
      exchange.backward({kTagsPerExpertExchange, "experts backward"}, dispatch, inputs,
                        own_tokens(data.dy_TD).to(rows), weights, gradients);
  const auto found = [](const at::Tensor& values) { return values.to(at::kDouble).cpu(); };
  return {
      .y = found(y),
      .dx = found(d.dx_TD),
      .dweights = found(d.dweights_TK),
      .gradients = {found(gradients.gate_eFD), found(gradients.up_eFD), found(gradients.down_eDF)},
      .chunks = dispatch.chunks(),
      .pairs_per_chunk = dispatch.pairs_per_chunk()};
}

inline ExpertOutcome run_expert_case(const ExpertCase& c, const ExpertRun& run = {}) {
  const ExpertData data = draw_data(c);
  if (c.ranks == 1) return run_on_rank(c, data, nullptr, run);
  std::vector<ExpertOutcome> parts(static_cast<size_t>(c.ranks));
  const RunRanksOptions ranks{.stall_timeout_s = 60, .device_memory = device_memory(run.device)};
  run_ranks(c.ranks, ranks, [&](Communicator& comm) {
    const DeviceThread thread(run.device);
    parts[static_cast<size_t>(comm.rank())] = run_on_rank(c, data, &comm, run);
  });
  auto joined = [&](auto&& tensor_of) {
    std::vector<at::Tensor> tensors;
    for (const ExpertOutcome& part : parts) tensors.push_back(tensor_of(part));
    return at::cat(tensors);
  };
  ExpertOutcome whole;
  whole.y = joined([](const ExpertOutcome& part) { return part.y; });
  whole.dx = joined([](const ExpertOutcome& part) { return part.dx; });
  whole.dweights = joined([](const ExpertOutcome& part) { return part.dweights; });
  whole.gradients = {joined([](const ExpertOutcome& part) { return part.gradients.gate_eFD; }),
                     joined([](const ExpertOutcome& part) { return part.gradients.up_eFD; }),
                     joined([](const ExpertOutcome& part) { return part.gradients.down_eDF; })};
  for (const ExpertOutcome& part : parts) {
    whole.chunks = std::max(whole.chunks, part.chunks);
    whole.pairs_per_chunk = std::max(whole.pairs_per_chunk, part.pairs_per_chunk);
  }
  return whole;
}

}  // namespace longspan
