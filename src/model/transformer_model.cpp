#include "model/transformer_model.h"

#include <cmath>

#include "base/check.h"
#include "device/device.h"
#include "kernels/cpu/swiglu.h"
#include "layers/embedding.h"
#include "layers/rope_table.h"
#include "model/families.h"

namespace longspan {

TransformerModel::TransformerModel(const ModelSpec& spec, int64_t expert_group,
                                   const at::TensorOptions& tensors, const HeadLossOptions& options)
    : spec_(spec),
      tensors_(tensors),
      head_options_(options),
      parameters_(spec, expert_group),
      rope_(spec.is_hybrid() ? RopeFrequencies{} : rope_frequencies(spec.rope, spec.head_dim)),
      attention_shape_{.heads = spec.num_query_heads,
                       .key_heads = spec.num_kv_heads,
                       .head_width = spec.head_dim,
                       .scale = 1 / std::sqrt(static_cast<double>(spec.head_dim))} {}

std::shared_ptr<const RopeTable> TransformerModel::rope_table(
    std::span<const int64_t> positions) const {
  if (spec_.is_hybrid()) return nullptr;
  return make_rope_table(rope_.inverse, rope_.attention_scaling, positions,
                         tensors_.dtype(accumulate_type(scalar_type())));
}

at::Tensor TransformerModel::embed(const ParameterAccess& access,
                                   std::span<const int32_t> tokens) const {
  return to_streams(longspan::embed(access, parameters_.embedding(), tokens));
}

void TransformerModel::embed_backward(const ParameterAccess& access,
                                      std::span<const int32_t> tokens, const at::Tensor& dx) const {
  longspan::embed_backward(access, parameters_.embedding(), tokens, sum_of_streams(dx));
}

HeadParameters TransformerModel::head() const {
  return {.norm = parameters_.final_norm(),
          .weight = parameters_.head(),
          .epsilon = spec_.rms_norm_eps};
}

double TransformerModel::swiglu_limit() const {
  return spec_.swiglu_limit > 0 ? spec_.swiglu_limit : kNoSwigluLimit;
}

std::vector<at::Tensor> TransformerModel::post_to_experts(const ParameterAccess&, int64_t layer,
                                                          const PostInputs&,
                                                          std::vector<at::Tensor>&) const {
  throw InternalError(text("layer ", layer, " has no experts"));
}

at::Tensor TransformerModel::combine(const ParameterAccess&, int64_t layer, const at::Tensor&,
                                     std::span<const at::Tensor>) const {
  throw InternalError(text("layer ", layer, " has no experts"));
}

HeadLossResult TransformerModel::head_loss(const ParameterAccess& access, const at::Tensor& x,
                                           const HeadTargets& targets, double scale) const {
  HeadLossResult result =
      longspan::head_loss(access, head(), from_streams(x), targets, scale, head_options_);
  result.dx_TC = share_of_streams(result.dx_TC);
  return result;
}

std::vector<double> TransformerModel::token_losses(const ParameterAccess& access,
                                                   const at::Tensor& x,
                                                   std::span<const int32_t> targets) const {
  return head_token_losses(access, head(), from_streams(x), targets, head_options_);
}

at::Tensor TransformerModel::logits(const ParameterAccess& access, const at::Tensor& x) const {
  return head_logits(access, head(), from_streams(x));
}

std::unique_ptr<TransformerModel> make_model(const ModelSpec& spec,
                                             const at::TensorOptions& tensors, int64_t expert_group,
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
    case ModelFamily::kGlm5Next:
    case ModelFamily::kKimiLinear:
      return make_hybrid(spec, expert_group, tensors, options);
  }
  throw InternalError("unknown model family");
}

}  // namespace longspan
