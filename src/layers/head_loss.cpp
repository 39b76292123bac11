#include "layers/head_loss.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "device/device.h"
#include "kernels/cpu/cross_entropy.h"
#include "kernels/cpu/embedding.h"
#include "layers/cuda_ops.h"
#include "layers/parallel_ranges.h"
#include "layers/real_types.h"
#include "layers/row_ops.h"
#include "layers/weight_gradient.h"

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

int64_t chunk_tokens_for(const at::Tensor& x_TC, int64_t vocabulary,
                         const HeadLossOptions& options) {
  if (x_TC.is_cpu()) return head_chunk_tokens(vocabulary, x_TC.element_size(), options);
  return std::max(kChunkTokensMin,
                  options.gpu_logits_bytes_max / (vocabulary * x_TC.element_size()));
}

// Calls work(chunk, normed, logits) for one chunk of tokens after the other; the logits' buffer is
// the same each time.
template <typename Work>
void for_chunks(const ParameterAccess& access, const HeadParameters& head, const at::Tensor& x_TC,
                const HeadLossOptions& options, const Work& work) {
  const at::Tensor& weight = access.weights->weight(head.weight);
  const int64_t tokens = x_TC.size(0);
  const int64_t chunk_tokens = std::min(tokens, chunk_tokens_for(x_TC, weight.size(0), options));
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

// What the kernels of the loss need, where x is. Losses are float64, one a token.
class TokenLosses {
 public:
  TokenLosses(const at::Tensor& x_TC, const std::vector<int32_t>& targets,
              std::span<const float> weights)
      : targets_(targets), weights_(weights), on_gpu_(!x_TC.is_cpu()) {
    losses_ = at::empty({std::ssize(targets)}, x_TC.options().dtype(at::kDouble));
    if (!on_gpu_) return;
    gpu_targets_ = upload(std::span(targets_), x_TC.device());
    if (!weights.empty()) gpu_weights_ = upload(weights, x_TC.device());
  }

  // Fills the losses of a chunk of rows.
  void compute(Range chunk, const at::Tensor& logits) const {
    if constexpr (kBuiltWithCuda) {
      if (on_gpu_) {
        return cuda_cross_entropy_losses(logits, part(gpu_targets_, chunk), part(losses_, chunk));
      }
    }
    for_real_type(logits.scalar_type(), [&]<typename Real>() {
      parallel_ranges({0, chunk.size()}, kGrainRows, [&](Range rows) {
        cross_entropy_losses(logits.const_data_ptr<Real>(), targets_.data() + chunk.begin, rows,
                             logits.size(1), losses_.mutable_data_ptr<double>() + chunk.begin);
      });
    });
  }

  // The same, and the logits become their gradient.
  void compute_gradient(Range chunk, double scale, const at::Tensor& logits) const {
    if constexpr (kBuiltWithCuda) {
      if (on_gpu_) {
        return cuda_cross_entropy_gradient(logits, part(gpu_targets_, chunk),
                                           part(gpu_weights_, chunk), scale, part(losses_, chunk));
      }
    }
    for_real_type(logits.scalar_type(), [&]<typename Real>() {
      parallel_ranges({0, chunk.size()}, kGrainRows, [&](Range rows) {
        cross_entropy_gradient(logits.mutable_data_ptr<Real>(), targets_.data() + chunk.begin,
                               weights_.data() + chunk.begin, scale, rows, logits.size(1),
                               losses_.mutable_data_ptr<double>() + chunk.begin);
      });
    });
  }

  // In token order on CPU; rows of weight 0 do not count.
  at::Tensor weighted_sum() const {
    if constexpr (kBuiltWithCuda) {
      if (on_gpu_) return cuda_weighted_sum(losses_, gpu_weights_);
    }
    const double* losses = losses_.const_data_ptr<double>();
    double sum = 0;
    for (size_t t = 0; t < weights_.size(); ++t) {
      if (weights_[t] != 0) sum += static_cast<double>(weights_[t]) * losses[t];
    }
    at::Tensor result = at::empty({1}, at::kDouble);
    *result.mutable_data_ptr<double>() = sum;
    return result;
  }

  std::vector<double> to_host() const {
    const at::Tensor host = losses_.cpu();
    const double* losses = host.const_data_ptr<double>();
    return {losses, losses + host.numel()};
  }

 private:
  static at::Tensor part(const at::Tensor& whole, Range rows) {
    return whole.narrow(0, rows.begin, rows.size());
  }

  const std::vector<int32_t>& targets_;
  std::span<const float> weights_;
  bool on_gpu_;
  at::Tensor losses_;
  at::Tensor gpu_targets_;
  at::Tensor gpu_weights_;
};

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
  HeadLossResult result{{}, at::empty_like(x_TC)};
  const TokenLosses losses(x_TC, targets, tokens.weights);
  for_chunks(access, head, x_TC, options,
             [&](Range chunk, const NormOutput& normed, const at::Tensor& logits) {
               losses.compute_gradient(chunk, scale, logits);
               at::Tensor dx = result.dx_TC.narrow(0, chunk.begin, chunk.size());
               at::mm_out(dx, logits, weight);
               add_weight_gradient(access, head.weight, logits, normed.y);
               norm_backward(x_TC.narrow(0, chunk.begin, chunk.size()),
                             access.weights->weight(head.norm), normed.inverse_rms, dx,
                             access.gradients->gradient(head.norm), dx, nullptr);
             });
  result.weighted_loss_sum = losses.weighted_sum();
  return result;
}

std::vector<double> head_token_losses(const ParameterAccess& access, const HeadParameters& head,
                                      const at::Tensor& x_TC, std::span<const int32_t> targets,
                                      const HeadLossOptions& options) {
  const std::vector<int32_t> usable =
      usable_targets(targets, x_TC, access.weights->weight(head.weight).size(0));
  const TokenLosses token_losses(x_TC, usable, {});
  for_chunks(access, head, x_TC, options,
             [&](Range chunk, const NormOutput&, const at::Tensor& logits) {
               token_losses.compute(chunk, logits);
             });
  std::vector<double> losses = token_losses.to_host();
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
