// Final norm, LM head and cross-entropy as one explicit operation, a chunk of tokens at a time.
//
// Why: logits of all tokens would be the largest buffer of a run (tokens x vocabulary). Here a
// chunk's logits become their own gradient in place and are used up at once, so loss, dX and the
// weights' gradients come out together and no more than one chunk of logits exists.
//
//   const HeadLossResult result =
//       head_loss(access, head, x_TC, {targets, weights}, 1 / weight_sum, {});
//   const std::vector<double> losses = head_token_losses(access, head, x_TC, targets, {}); // eval
//
// The loss is the sum over tokens of weight * -log p(target); gradients are those of scale * loss.
// A target of -1 is "none" and needs weight 0; in eval its loss is 0. Sums run in token order.
// Thread contract: one rank, on its thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "layers/parameter_access.h"

namespace longspan {

struct HeadParameters {
  ParameterId norm = -1;
  ParameterId weight = -1;  // [vocabulary, C]; the embedding's if they are tied
  double epsilon = 0;
};

struct HeadLossOptions {
  int64_t logits_bytes_max = int64_t{32} << 20;
  int64_t gpu_logits_bytes_max = int64_t{1} << 30;  // where products want many rows
};

// On CPU: tokens whose logits exist at once: what fits logits_bytes_max, at least 16 and at most
// 2,048 (more would fall out of the cache and gain nothing).
int64_t head_chunk_tokens(int64_t vocabulary, int64_t element_bytes,
                          const HeadLossOptions& options);

// One of each per token.
struct HeadTargets {
  std::span<const int32_t> targets;
  std::span<const float> weights;
};

struct HeadLossResult {
  at::Tensor weighted_loss_sum;  // one float64 where x is, not scaled
  at::Tensor dx_TC;              // scaled, as the weights' gradients
};

// x_TC: output of the last layer.
HeadLossResult head_loss(const ParameterAccess& access, const HeadParameters& head,
                         const at::Tensor& x_TC, const HeadTargets& tokens, double scale,
                         const HeadLossOptions& options);

// Forward only: the loss of every token.
std::vector<double> head_token_losses(const ParameterAccess& access, const HeadParameters& head,
                                      const at::Tensor& x_TC, std::span<const int32_t> targets,
                                      const HeadLossOptions& options);

// All logits [T, vocabulary], for a few tokens.
at::Tensor head_logits(const ParameterAccess& access, const HeadParameters& head,
                       const at::Tensor& x_TC);

}  // namespace longspan
