// Qwen3 (dense): Llama with an RMSNorm on every query and key head before the rotary embedding.
#include "layers/ops.h"
#include "model/families.h"

namespace longspan {
namespace {

class Qwen3 final : public TransformerModel {
 public:
  Qwen3(const ModelSpec& spec, const at::TensorOptions& tensors, const HeadLossOptions& options)
      : TransformerModel(spec, /*expert_group=*/1, tensors, options) {}

  std::vector<at::Tensor> pre(const ParameterAccess& access, int64_t layer, const at::Tensor& x_TC,
                              const TokenPlaces& places) const override {
    const LayerParameters& ids = parameters().layer(layer);
    const double epsilon = spec().rms_norm_eps;
    auto qkv = attention_projections(access, ids, spec(), x_TC);
    return {rope(head_norm(access, qkv[0], ids.q_norm, epsilon), places.rope),
            rope(head_norm(access, qkv[1], ids.k_norm, epsilon), places.rope), qkv[2]};
  }

  at::Tensor post(const ParameterAccess& access, int64_t layer,
                  const PostInputs& inputs) const override {
    return dense_output(access, parameters().layer(layer), spec(), inputs.mixed, inputs.x);
  }
};

}  // namespace

std::unique_ptr<TransformerModel> make_qwen3(const ModelSpec& spec,
                                             const at::TensorOptions& tensors,
                                             const HeadLossOptions& options) {
  return std::make_unique<Qwen3>(spec, tensors, options);
}

}  // namespace longspan
