#include "layers/head_loss.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "kernels/cpu/cross_entropy.h"
#include "kernels/cpu/embedding.h"
#include "layers/parallel_ranges.h"
#include "layers/real_types.h"
#include "layers/row_ops.h"

namespace longspan {
namespace {

constexpr int64_t kChunkTokensMin = 16;
constexpr int64_t kChunkTokensMax = 2048;
constexpr int64_t kGrainRows = 16;

// Targets with a stand-in for "none", checked.
std::vector<int32_t> usable_targets(std::span<const int32_t> targets, const at::Tensor& x_TC,
                                    int64_t vocabulary) {
  LONGSPAN_CHECK(x_TC.dim() == 2 && x_TC.is_contiguous() && x_TC.size(0) == std::ssize(targets),
                 "x ", x_TC.sizes(), " for ", targets.size(), " targets");
  std::vector<int32_t> usable(targets.begin(), targets.end());
  std::replace(usable.begin(), usable.end(), -1, 0);
  LONGSPAN_CHECK(token_ids_within(usable.data(), std::ssize(usable), vocabulary),
                 "a target is outside the vocabulary of ", vocabulary);
  return usable;
}

// Calls work(chunk, normed, logits) for one chunk of tokens after the other; the logits' buffer is
// the same each time.
template <typename Work>
void for_chunks(const ParameterAccess& access, const HeadParameters& head, const at::Tensor& x_TC,
                const HeadLossOptions& options, const Work& work) {
  const at::Tensor& weight = access.weights->weight(head.weight);
  const int64_t tokens = x_TC.size(0);
  const int64_t chunk_tokens =
      std::min(tokens, head_chunk_tokens(weight.size(0), x_TC.element_size(), options));
  const at::Tensor buffer = at::empty({chunk_tokens, weight.size(0)}, x_TC.options());
  for (int64_t begin = 0; begin < tokens; begin += chunk_tokens) {
    const Range chunk{begin, std::min(tokens, begin + chunk_tokens)};
    const NormOutput normed = norm_forward(x_TC.narrow(0, chunk.begin, chunk.size()),
                                           access.weights->weight(head.norm), head.epsilon);
    at::Tensor logits = buffer.narrow(0, 0, chunk.size());
    at::mm_out(logits, normed.y, weight.t());
    work(chunk, normed, logits);
  }
}

}  // namespace

int64_t head_chunk_tokens(int64_t vocabulary, int64_t element_bytes,
                          const HeadLossOptions& options) {
  return std::clamp(options.logits_bytes_max / (vocabulary * element_bytes), kChunkTokensMin,
                    kChunkTokensMax);
}

HeadLossResult head_loss(const ParameterAccess& access, const HeadParameters& head,
                         const at::Tensor& x_TC, const HeadTargets& tokens, double scale,
                         const HeadLossOptions& options) {
  const at::Tensor& weight = access.weights->weight(head.weight);
  const std::vector<int32_t> targets = usable_targets(tokens.targets, x_TC, weight.size(0));
  LONGSPAN_CHECK(tokens.weights.size() == targets.size(), tokens.weights.size(), " weights for ",
                 targets.size(), " targets");
  for (size_t t = 0; t < targets.size(); ++t) {
    LONGSPAN_CHECK(tokens.targets[t] != -1 || tokens.weights[t] == 0, "token ", t,
                   " has no target, but weight ", tokens.weights[t]);
  }
  HeadLossResult result{0, at::empty_like(x_TC)};
  std::vector<double> losses(targets.size());
  for_chunks(
      access, head, x_TC, options,
      [&](Range chunk, const NormOutput& normed, const at::Tensor& logits) {
        for_real_type(x_TC.scalar_type(), [&]<typename Real>() {
          parallel_ranges({0, chunk.size()}, kGrainRows, [&](Range rows) {
            cross_entropy_gradient(logits.mutable_data_ptr<Real>(), targets.data() + chunk.begin,
                                   tokens.weights.data() + chunk.begin, scale, rows, weight.size(0),
                                   losses.data() + chunk.begin);
          });
        });
        at::Tensor dx = result.dx_TC.narrow(0, chunk.begin, chunk.size());
        at::mm_out(dx, logits, weight);
        access.gradients->gradient(head.weight).addmm_(logits.t(), normed.y);
        norm_backward(x_TC.narrow(0, chunk.begin, chunk.size()), access.weights->weight(head.norm),
                      normed.inverse_rms, dx, access.gradients->gradient(head.norm), dx, nullptr);
      });
  for (size_t t = 0; t < losses.size(); ++t) {
    if (tokens.weights[t] != 0) {
      result.weighted_loss_sum += static_cast<double>(tokens.weights[t]) * losses[t];
    }
  }
  return result;
}

std::vector<double> head_token_losses(const ParameterAccess& access, const HeadParameters& head,
                                      const at::Tensor& x_TC, std::span<const int32_t> targets,
                                      const HeadLossOptions& options) {
  const int64_t vocabulary = access.weights->weight(head.weight).size(0);
  const std::vector<int32_t> usable = usable_targets(targets, x_TC, vocabulary);
  std::vector<double> losses(targets.size());
  for_chunks(access, head, x_TC, options,
             [&](Range chunk, const NormOutput&, const at::Tensor& logits) {
               for_real_type(x_TC.scalar_type(), [&]<typename Real>() {
                 parallel_ranges({0, chunk.size()}, kGrainRows, [&](Range rows) {
                   cross_entropy_losses(logits.const_data_ptr<Real>(), usable.data() + chunk.begin,
                                        rows, vocabulary, losses.data() + chunk.begin);
                 });
               });
             });
  for (size_t t = 0; t < losses.size(); ++t) {
    if (targets[t] == -1) losses[t] = 0;
  }
  return losses;
}

at::Tensor head_logits(const ParameterAccess& access, const HeadParameters& head,
                       const at::Tensor& x_TC) {
  const NormOutput normed = norm_forward(x_TC, access.weights->weight(head.norm), head.epsilon);
  return at::mm(normed.y, access.weights->weight(head.weight).t());
}

}  // namespace longspan
