// Absorbed queries and values against expanded keys and values, gradients by finite differences;
// operations of an untrained index against their formulas.
#include "layers/latent_ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/einsum.h>
#include <gtest/gtest.h>

#include "layers/index_ops.h"
#include "layers/segment.h"
#include "layers/test_parameters.h"

namespace longspan {
namespace {

constexpr int64_t kHeads = 3;
constexpr int64_t kKeyWidth = 4;
constexpr int64_t kValueWidth = 2;
constexpr int64_t kLatent = 5;

// The scores of queries and latents, and what expanded values give for one weighted latent.
TEST(LatentOps, EqualExpandedKeysAndValues) {
  TestParameters parameters({{kHeads * (kKeyWidth + kValueWidth), kLatent}}, at::kDouble, 1);
  RandomStream random(2, "latent ops");
  const at::Tensor q = random_tensor(random, {6, kHeads, kKeyWidth});
  const at::Tensor latents = random_tensor(random, {9, kLatent});
  const at::Tensor o = random_tensor(random, {6, kHeads, kLatent});
  const at::Tensor expanded =
      latents.mm(parameters.weights[0].t()).view({9, kHeads, kKeyWidth + kValueWidth});
  const at::Tensor scores = at::einsum("thk,shk->ths", {q, expanded.narrow(2, 0, kKeyWidth)});
  const at::Tensor absorbed = absorb_queries(parameters.access(), q, 0);
  EXPECT_LE(relative_error(at::einsum("thr,sr->ths", {absorbed, latents}), scores), 1e-14);
  const at::Tensor weights = random_tensor(random, {6, kHeads, 9});
  const at::Tensor values =
      at::einsum("ths,shv->thv", {weights, expanded.narrow(2, kKeyWidth, kValueWidth)});
  const at::Tensor mixed = at::einsum("ths,sr->thr", {weights, latents}).contiguous();
  EXPECT_LE(relative_error(expand_values(parameters.access(), mixed, 0, kValueWidth), values),
            1e-14);
}

TEST(LatentOps, GradientsAreFiniteDifferences) {
  for (const int64_t tokens : {0, 1, 5}) {
    TestParameters parameters({{kHeads * (kKeyWidth + kValueWidth), kLatent}}, at::kDouble, 1);
    RandomStream random(static_cast<uint64_t>(tokens), "latent ops gradients");
    at::Tensor q = random_tensor(random, {tokens, kHeads, kKeyWidth});
    at::Tensor o = random_tensor(random, {tokens, kHeads, kLatent});
    const at::Tensor d_absorbed = random_tensor(random, {tokens, kHeads, kLatent});
    const at::Tensor d_values = random_tensor(random, {tokens, kHeads, kValueWidth});
    const auto body = [&](const std::vector<at::Tensor>& inputs) {
      return std::vector<at::Tensor>{absorb_queries(parameters.access(), inputs[0], 0),
                                     expand_values(parameters.access(), inputs[1], 0, kValueWidth)};
    };
    const auto gradients = Segment::record(body, {q, o}).backward({d_absorbed, d_values});
    const auto objective = [&] {
      const auto outputs = Segment::run(body, {q, o});
      return ((outputs[0] * d_absorbed).sum() + (outputs[1] * d_values).sum()).item<double>();
    };
    EXPECT_LE(relative_error(gradients[0], finite_difference(q, objective)), 1e-9) << tokens;
    EXPECT_LE(relative_error(gradients[1], finite_difference(o, objective)), 1e-9) << tokens;
    EXPECT_LE(relative_error(parameters.gradients[0],
                             finite_difference(parameters.weights[0], objective)),
              1e-9)
        << tokens;
  }
}

TEST(IndexOps, EqualTheirFormulasAndHaveNoHistory) {
  TestParameters parameters({{6, 4}, {6}, {6}, {4, 6}}, at::kDouble, 1);
  RandomStream random(3, "index ops");
  const at::Tensor x = random_tensor(random, {5, 4}).set_requires_grad(true);
  const at::Tensor k = untrained_project(parameters.access(), x, 0);
  EXPECT_LE(relative_error(k, x.mm(parameters.weights[0].t())), 1e-14);
  const at::Tensor normed = untrained_layer_norm(parameters.access(), k, 1, 2, 1e-6);
  const at::Tensor centred = k - k.mean(-1, true);
  const at::Tensor expected =
      centred / (centred * centred).mean(-1, true).add(1e-6).sqrt() * parameters.weights[1] +
      parameters.weights[2];
  EXPECT_LE(relative_error(normed, expected), 1e-14);
  const std::vector<int64_t> positions = {2, 3, 4, 0, 5};
  const at::Tensor gates = add_slots(parameters.access(), k, 3, positions);
  for (int64_t token = 0; token < 5; ++token) {
    const int64_t slot = positions[static_cast<size_t>(token)] % 4;
    EXPECT_TRUE(gates[token].equal(k[token] + parameters.weights[3][slot]));
  }
  EXPECT_FALSE(k.requires_grad() || normed.requires_grad() || gates.requires_grad());
}

}  // namespace
}  // namespace longspan
