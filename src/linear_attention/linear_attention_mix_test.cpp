// Linear attention on any layout is linear attention on one rank: outputs, gradients of inputs and
// of weights; and that is the recurrence, differentiated by torch.
//
// Tolerance: float64, sums of some hundred terms: 1e-10 relative per tensor.
#include "linear_attention/linear_attention_mix.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "comm/run_ranks.h"
#include "layers/test_parameters.h"

namespace longspan {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr double kTolerance = 1e-10;
constexpr int64_t kLayer = 2;

struct Problem {
  LinearAttentionShape shape{.heads = 3, .key_width = 4, .value_width = 4};
  std::vector<int64_t> documents;
  Tensors inputs;  // of the whole line: qkv, g, beta
  at::Tensor d_output;
  at::ScalarType type = at::kDouble;
  uint64_t seed = 0;

  int64_t tokens() const { return inputs[0].size(0); }
  TestParameters parameters() const {
    const std::vector<int64_t> weight = {shape.heads * shape.key_width, 1, shape.conv_taps};
    return TestParameters({weight, weight, weight}, type, seed);
  }
};

Problem make_problem(std::vector<int64_t> documents, uint64_t seed,
                     at::ScalarType type = at::kDouble) {
  RandomStream random(seed, "linear attention test");
  Problem problem;
  problem.seed = seed;
  problem.type = type;
  problem.documents = std::move(documents);
  int64_t T = 0;
  for (const int64_t tokens : problem.documents) T += tokens;
  const int64_t H = problem.shape.heads;
  const int64_t K = problem.shape.key_width;
  problem.inputs = {random_tensor(random, {T, 3, H, K}, type),
                    -5 * (random_tensor(random, {T, H, K}, type) - 2).sigmoid(),
                    random_tensor(random, {T, H}, type).sigmoid()};
  problem.d_output = random_tensor(random, {T, H, K}, type);
  return problem;
}

// Outputs and gradients of the whole line: o, d_qkv, d_g, d_beta, weights of q, k, v.
struct Results {
  Tensors all;
};

const std::vector<std::string> kNames = {"output", "qkv",    "decay", "beta",
                                         "q conv", "k conv", "v conv"};

// What the executor does with a mix on one rank: bands of chunks forward, keeping what later bands
// need; then backward, each band again forward before it.
class RankRun {
 public:
  RankRun(const Problem& problem, const LinearAttentionMix& mix, const TokenLayout& layout,
          int band, Communicator& comm, TestParameters& parameters)
      : problem_(problem),
        mix_(mix),
        layout_(layout),
        band_(band),
        comm_(comm),
        parameters_(parameters),
        outputs_(static_cast<size_t>(layout.num_chunks())),
        contexts_(outputs_.size()),
        gradients_(outputs_.size()) {}

  void run(Results& results) {
    const int chunks = layout_.num_chunks();
    for (int first = 0; first < chunks; first += band_) {
      const int end = std::min(chunks, first + band_);
      forward(first, end);
      for (int chunk = first; chunk < end && end < chunks; ++chunk) {
        MixContext& context = contexts_[index(chunk)];
        context = mix_.carry(call(chunk), context, end);
        outputs_[index(chunk)].clear();
      }
    }
    const int last = (chunks - 1) / band_ * band_;
    for (int first = last; first >= 0; first -= band_) {
      const int end = std::min(chunks, first + band_);
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
            kLayer,
            &layout_,
            chunk,
            &comm_,
            1000 * chunk,
            text("linear attention, chunk ", chunk)};
  }

  Tensors own(const Tensors& of_line, int chunk) const {
    const Range piece = layout_.piece(chunk, comm_.rank());
    Tensors rows;
    for (const at::Tensor& tensor : of_line) {
      rows.push_back(tensor.narrow(0, piece.begin, piece.size()).clone());
    }
    return rows;
  }

  void forward(int first, int end) {
    for (int chunk = first; chunk < end; ++chunk) {
      std::vector<const MixContext*> earlier;
      for (int before = 0; before < chunk; ++before) earlier.push_back(&contexts_[index(before)]);
      Tensors choices;
      MixOutput output = mix_.forward(call(chunk), own(problem_.inputs, chunk), earlier, choices);
      contexts_[index(chunk)] = std::move(output.context);
      outputs_[index(chunk)] = std::move(output.tensors);
    }
  }

  void backward(int chunk, Results& results) {
    MixBackwardInputs given;
    given.inputs = own(problem_.inputs, chunk);
    given.output = outputs_[index(chunk)];
    given.output_gradient = own({problem_.d_output}, chunk)[0];
    for (int before = 0; before <= chunk; ++before) {
      given.contexts.push_back(&contexts_[index(before)]);
      given.gradients.push_back(&gradients_[index(before)]);
    }
    const Tensors d_inputs = mix_.backward(call(chunk), given);
    const Range piece = layout_.piece(chunk, comm_.rank());
    // Ranks write disjoint rows.
    results.all[0].narrow(0, piece.begin, piece.size()).copy_(given.output[0]);
    for (size_t i = 0; i < d_inputs.size(); ++i) {
      results.all[i + 1].narrow(0, piece.begin, piece.size()).copy_(d_inputs[i]);
    }
  }

  const Problem& problem_;
  const LinearAttentionMix& mix_;
  const TokenLayout& layout_;
  int band_;
  Communicator& comm_;
  TestParameters& parameters_;
  std::vector<Tensors> outputs_;
  std::vector<MixContext> contexts_;
  std::vector<MixContextGradient> gradients_;
};

Results run_layout(const Problem& problem, const TokenLayout& layout, int band, int threads = 1) {
  const LinearAttentionMix mix(problem.shape, {{kLayer, {0, 1, 2}}});
  Results results;
  results.all = {at::full_like(problem.d_output, NAN)};
  for (const at::Tensor& input : problem.inputs) results.all.push_back(at::full_like(input, NAN));
  std::vector<TestParameters> parameters;
  for (int rank = 0; rank < layout.num_ranks(); ++rank) parameters.push_back(problem.parameters());
  run_ranks(layout.num_ranks(), {.stall_timeout_s = 60}, [&](Communicator& comm) {
    at::set_num_threads(threads);
    RankRun(problem, mix, layout, band, comm, parameters[static_cast<size_t>(comm.rank())])
        .run(results);
  });
  for (size_t i = 0; i < 3; ++i) {
    at::Tensor sum = at::zeros_like(parameters[0].gradients[i]);
    for (const TestParameters& of_rank : parameters) sum.add_(of_rank.gradients[i]);
    results.all.push_back(sum);
  }
  return results;
}

Results run_one_rank(const Problem& problem) {
  return run_layout(problem, TokenLayout::make(problem.documents, {}), 1);
}

void expect_equal(const Results& found, const Results& expected) {
  for (size_t i = 0; i < expected.all.size(); ++i) {
    EXPECT_LE(relative_error(found.all[i], expected.all[i]), kTolerance) << kNames[i];
  }
}

// One document by the recurrence, in torch's differentiable operations.
at::Tensor document_by_recurrence(const Problem& problem, const Tensors& line, const Tensors& conv,
                                  const Range& document) {
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

Results run_recurrence(const Problem& problem) {
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
  Results results;
  results.all = {output.detach()};
  for (const at::Tensor& gradient : torch::autograd::grad({output}, leaves, {problem.d_output})) {
    results.all.push_back(gradient);
  }
  return results;
}

TEST(LinearAttentionMix, OneRankIsTheRecurrence) {
  expect_equal(run_one_rank(make_problem({1, 2, 3, 4, 5, 63, 64, 65, 70}, 1)),
               run_recurrence(make_problem({1, 2, 3, 4, 5, 63, 64, 65, 70}, 1)));
}

std::vector<int64_t> random_documents(RandomStream& random) {
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
std::vector<int64_t> random_borders(RandomStream& random, int64_t tokens, int pieces) {
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

class AnyLayout : public testing::TestWithParam<int> {};

TEST_P(AnyLayout, EqualsOneRank) {
  const int ranks = GetParam();
  for (const int chunks : {1, 2, 3, 5}) {
    for (uint64_t seed = 0; seed < 16; ++seed) {
      RandomStream random(seed * 100 + static_cast<uint64_t>(ranks * 10 + chunks), "layouts");
      const Problem problem = make_problem(random_documents(random), seed);
      const int band = static_cast<int>(random.between(1, chunks));
      std::vector<double> shares;
      for (int rank = 0; rank < ranks; ++rank) shares.push_back(seed % 4 == 1 && rank == 1 ? 0 : 1);
      const TokenLayout layout =
          seed % 4 <= 1
              ? TokenLayout::make(problem.documents, {.chunks = chunks, .shares = shares})
              : TokenLayout::from_borders(problem.documents, chunks, ranks,
                                          random_borders(random, problem.tokens(), ranks * chunks));
      SCOPED_TRACE(text("ranks ", ranks, ", chunks ", chunks, ", band ", band, ", seed ", seed));
      expect_equal(run_layout(problem, layout, band), run_one_rank(problem));
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, AnyLayout, testing::Values(1, 2, 3, 4, 8));

TEST(LinearAttentionMix, OneTokenEverywhere) {
  const Problem problem = make_problem({9, 3}, 4);
  std::vector<int64_t> borders;
  for (int64_t at = 0; at <= 12; ++at) borders.push_back(at);
  const TokenLayout layout = TokenLayout::from_borders(problem.documents, 4, 3, borders);
  for (const int band : {1, 2, 4}) {
    expect_equal(run_layout(problem, layout, band), run_recurrence(problem));
  }
}

TEST(LinearAttentionMix, SameLayoutSameBitsForAnyNumberOfThreads) {
  const Problem problem = make_problem({200, 3, 90}, 5, at::kFloat);
  const TokenLayout layout = TokenLayout::make(problem.documents, {.chunks = 2, .shares = {1, 1}});
  const Results one = run_layout(problem, layout, 1);
  for (const int threads : {1, 2, 3}) {
    const Results again = run_layout(problem, layout, 1, threads);
    for (size_t i = 0; i < one.all.size(); ++i) EXPECT_TRUE(at::equal(one.all[i], again.all[i]));
  }
}

}  // namespace
}  // namespace longspan
