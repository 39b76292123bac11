#include "model/transformer_model.h"

#include <cmath>

#include "base/check.h"
#include "layers/embedding.h"
#include "layers/rope_table.h"
#include "model/families.h"

namespace longspan {

TransformerModel::TransformerModel(const ModelSpec& spec, at::ScalarType type,
                                   const HeadLossOptions& options)
    : spec_(spec),
      type_(type),
      head_options_(options),
      parameters_(spec),
      rope_(rope_frequencies(spec.rope, spec.head_dim)),
      attention_shape_{.heads = spec.num_query_heads,
                       .key_heads = spec.num_kv_heads,
                       .head_width = spec.head_dim,
                       .scale = 1 / std::sqrt(static_cast<double>(spec.head_dim))} {}

std::shared_ptr<const RopeTable> TransformerModel::rope_table(
    std::span<const int64_t> positions) const {
  return make_rope_table(rope_.inverse, rope_.attention_scaling, positions, type_);
}

at::Tensor TransformerModel::embed(const ParameterAccess& access,
                                   std::span<const int32_t> tokens) const {
  return longspan::embed(access, parameters_.embedding(), tokens);
}

void TransformerModel::embed_backward(const ParameterAccess& access,
                                      std::span<const int32_t> tokens,
                                      const at::Tensor& dx_TC) const {
  longspan::embed_backward(access, parameters_.embedding(), tokens, dx_TC);
}

HeadParameters TransformerModel::head() const {
  return {.norm = parameters_.final_norm(),
          .weight = parameters_.head(),
          .epsilon = spec_.rms_norm_eps};
}

HeadLossResult TransformerModel::head_loss(const ParameterAccess& access, const at::Tensor& x_TC,
                                           const HeadTargets& targets, double scale) const {
  return longspan::head_loss(access, head(), x_TC, targets, scale, head_options_);
}

std::vector<double> TransformerModel::token_losses(const ParameterAccess& access,
                                                   const at::Tensor& x_TC,
                                                   std::span<const int32_t> targets) const {
  return head_token_losses(access, head(), x_TC, targets, head_options_);
}

at::Tensor TransformerModel::logits(const ParameterAccess& access, const at::Tensor& x_TC) const {
  return head_logits(access, head(), x_TC);
}

std::unique_ptr<TransformerModel> make_model(const ModelSpec& spec, at::ScalarType type,
                                             const HeadLossOptions& options) {
  LONGSPAN_CHECK(type == at::kFloat || type == at::kDouble,
                 "a model computes in float32 or float64, not ", c10::toString(type));
  switch (spec.family) {
    case ModelFamily::kLlama:
      return make_llama(spec, type, options);
    case ModelFamily::kQwen3:
      return make_qwen3(spec, type, options);
  }
  throw InternalError("unknown model family");
}

}  // namespace longspan
