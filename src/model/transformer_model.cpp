#include "model/transformer_model.h"

#include <cmath>

#include "base/check.h"
#include "device/device.h"
#include "layers/embedding.h"
#include "layers/rope_table.h"
#include "model/families.h"

namespace longspan {

TransformerModel::TransformerModel(const ModelSpec& spec, const at::TensorOptions& tensors,
                                   const HeadLossOptions& options)
    : spec_(spec),
      tensors_(tensors),
      head_options_(options),
      parameters_(spec),
      rope_(rope_frequencies(spec.rope, spec.head_dim)),
      attention_shape_{.heads = spec.num_query_heads,
                       .key_heads = spec.num_kv_heads,
                       .head_width = spec.head_dim,
                       .scale = 1 / std::sqrt(static_cast<double>(spec.head_dim))} {}

std::shared_ptr<const RopeTable> TransformerModel::rope_table(
    std::span<const int64_t> positions) const {
  return make_rope_table(rope_.inverse, rope_.attention_scaling, positions,
                         tensors_.dtype(accumulate_type(scalar_type())));
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

std::unique_ptr<TransformerModel> make_model(const ModelSpec& spec,
                                             const at::TensorOptions& tensors,
                                             const HeadLossOptions& options) {
  const at::ScalarType type = at::typeMetaToScalarType(tensors.dtype());
  const bool on_cpu = tensors.device().is_cpu();
  LONGSPAN_CHECK(type == at::kFloat || type == at::kDouble || (type == at::kBFloat16 && !on_cpu),
                 "a model computes in float32 or float64, on a GPU also in bfloat16, not in ",
                 c10::toString(type), " on ", tensors.device().str());
  switch (spec.family) {
    case ModelFamily::kLlama:
      return make_llama(spec, tensors, options);
    case ModelFamily::kQwen3:
      return make_qwen3(spec, tensors, options);
  }
  throw InternalError("unknown model family");
}

}  // namespace longspan
