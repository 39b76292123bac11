// Embedding and head loss: values against formulas of torch's operations, gradients against finite
// differences, chunking, rows without target, threads.
#include "layers/head_loss.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "layers/embedding.h"
#include "layers/test_parameters.h"

namespace longspan {
namespace {

constexpr int64_t kVocabulary = 11;
constexpr int64_t kWidth = 6;
const HeadParameters kHead{.norm = 0, .weight = 1, .epsilon = 1e-2};

struct Batch {
  at::Tensor x;
  std::vector<int32_t> targets;
  std::vector<float> weights;
};

Batch random_batch(int64_t tokens, uint64_t seed, at::ScalarType type = at::kDouble) {
  RandomStream random(seed, "batch");
  Batch batch;
  batch.x = random_tensor(random, {tokens, kWidth}, type);
  for (int64_t t = 0; t < tokens; ++t) {
    const bool none = random.below(4) == 0;
    batch.targets.push_back(none ? -1 : static_cast<int32_t>(random.between(0, kVocabulary - 1)));
    batch.weights.push_back(none ? 0.0f : static_cast<float>(random.uniform()));
  }
  return batch;
}

at::Tensor logits_formula(const TestParameters& parameters, const at::Tensor& x) {
  const at::Tensor normed =
      x / (x * x).mean(-1, true).add(kHead.epsilon).sqrt() * parameters.weights[0];
  return normed.mm(parameters.weights[1].t());
}

at::Tensor losses_formula(const TestParameters& parameters, const Batch& batch) {
  at::Tensor targets = at::tensor(batch.targets, at::kLong);
  const at::Tensor has_target = targets.ge(0);
  targets = targets.clamp_min(0);
  const at::Tensor losses = -logits_formula(parameters, batch.x)
                                 .log_softmax(1)
                                 .gather(1, targets.unsqueeze(1))
                                 .squeeze(1);
  return losses * has_target;
}

double loss_formula(const TestParameters& parameters, const Batch& batch) {
  return (losses_formula(parameters, batch) * at::tensor(batch.weights)).sum().item<double>();
}

struct Outcome {
  double loss = 0;
  at::Tensor dx;
  std::vector<at::Tensor> gradients;
};

Outcome run(TestParameters& parameters, const Batch& batch, double scale,
            const HeadLossOptions& options) {
  for (at::Tensor& gradient : parameters.gradients) gradient.zero_();
  Outcome outcome;
  const HeadLossResult result = head_loss(parameters.access(), kHead, batch.x,
                                          {batch.targets, batch.weights}, scale, options);
  outcome.loss = result.weighted_loss_sum.item<double>();
  outcome.dx = result.dx_TC;
  for (const at::Tensor& gradient : parameters.gradients) {
    outcome.gradients.push_back(gradient.clone());
  }
  return outcome;
}

TEST(HeadLoss, LossAndGradientsInAnyChunks) {
  // 17 tokens: chunks of 16 and 1.
  EXPECT_EQ(head_chunk_tokens(kVocabulary, 8, {.logits_bytes_max = 1}), 16);
  EXPECT_EQ(head_chunk_tokens(kVocabulary, 8, {.logits_bytes_max = 100 * kVocabulary * 8}), 100);
  EXPECT_EQ(head_chunk_tokens(kVocabulary, 8, {}), 2048);
  for (const int64_t logits_bytes : {int64_t{1}, int64_t{1} << 20}) {
    TestParameters parameters({{kWidth}, {kVocabulary, kWidth}}, at::kDouble, 3);
    Batch batch = random_batch(17, 4);
    const double scale = 0.3;
    const Outcome outcome = run(parameters, batch, scale, {.logits_bytes_max = logits_bytes});
    EXPECT_NEAR(outcome.loss, loss_formula(parameters, batch), 1e-12);
    auto objective = [&] { return scale * loss_formula(parameters, batch); };
    EXPECT_LT(relative_error(outcome.dx, finite_difference(batch.x, objective)), 1e-8);
    for (size_t i = 0; i < parameters.weights.size(); ++i) {
      EXPECT_LT(
          relative_error(outcome.gradients[i], finite_difference(parameters.weights[i], objective)),
          1e-8);
    }
  }
}

TEST(HeadLoss, EvaluationGivesTheLossOfEveryToken) {
  TestParameters parameters({{kWidth}, {kVocabulary, kWidth}}, at::kDouble, 3);
  const Batch batch = random_batch(40, 5);
  const std::vector<double> losses = head_token_losses(parameters.access(), kHead, batch.x,
                                                       batch.targets, {.logits_bytes_max = 1});
  const at::Tensor expected = losses_formula(parameters, batch);
  EXPECT_LT(relative_error(at::tensor(losses, at::kDouble), expected), 1e-14);
  EXPECT_LT(relative_error(head_logits(parameters.access(), kHead, batch.x),
                           logits_formula(parameters, batch.x)),
            1e-14);
}

TEST(HeadLoss, NoTokensAndNoTarget) {
  TestParameters parameters({{kWidth}, {kVocabulary, kWidth}}, at::kDouble, 3);
  EXPECT_EQ(run(parameters, random_batch(0, 1), 1, {}).loss, 0);
  Batch batch = random_batch(3, 1);
  batch.targets = {-1, -1, -1};
  batch.weights = {0, 0, 0};
  const Outcome outcome = run(parameters, batch, 1, {});
  EXPECT_EQ(outcome.loss, 0);
  EXPECT_EQ(outcome.dx.abs().sum().item<double>(), 0);
  batch.weights = {0, 1, 0};
  EXPECT_THROW(run(parameters, batch, 1, {}), InternalError);
  batch.targets = {0, 11, 0};
  EXPECT_THROW(run(parameters, batch, 1, {}), InternalError);
}

TEST(HeadLoss, BitsDoNotDependOnTheNumberOfThreads) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    TestParameters parameters({{kWidth}, {kVocabulary, kWidth}}, type, 3);
    const Batch batch = random_batch(5000, 6, type);
    at::set_num_threads(1);
    const Outcome one = run(parameters, batch, 1, {});
    at::set_num_threads(2);
    const Outcome two = run(parameters, batch, 1, {});
    at::set_num_threads(1);
    EXPECT_EQ(one.loss, two.loss);
    EXPECT_TRUE(at::equal(one.dx, two.dx));
    for (size_t i = 0; i < one.gradients.size(); ++i) {
      EXPECT_TRUE(at::equal(one.gradients[i], two.gradients[i]));
    }
  }
}

TEST(Embedding, ForwardAndBackward) {
  TestParameters parameters({{kVocabulary, 130}}, at::kFloat, 3);
  RandomStream random(7, "tokens");
  std::vector<int32_t> tokens;
  for (int t = 0; t < 500; ++t) {
    tokens.push_back(static_cast<int32_t>(random.between(0, kVocabulary - 1)));
  }
  const at::Tensor ids = at::tensor(tokens, at::kLong);
  EXPECT_TRUE(
      at::equal(embed(parameters.access(), 0, tokens), parameters.weights[0].index_select(0, ids)));
  const at::Tensor dx = random_tensor(random, {500, 130}, at::kFloat);
  parameters.gradients[0].fill_(1);
  embed_backward(parameters.access(), 0, tokens, dx);
  const at::Tensor expected =
      at::ones({kVocabulary, 130}, at::kDouble).index_add(0, ids, dx.to(at::kDouble));
  EXPECT_LT(relative_error(parameters.gradients[0], expected), 1e-6);

  const at::Tensor one_thread = parameters.gradients[0].clone();
  at::set_num_threads(2);
  parameters.gradients[0].fill_(1);
  embed_backward(parameters.access(), 0, tokens, dx);
  at::set_num_threads(1);
  EXPECT_TRUE(at::equal(parameters.gradients[0], one_thread));

  tokens[3] = kVocabulary;
  EXPECT_THROW(embed(parameters.access(), 0, tokens), InternalError);
  EXPECT_THROW(embed_backward(parameters.access(), 0, tokens, dx), InternalError);
}

}  // namespace
}  // namespace longspan
