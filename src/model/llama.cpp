// Llama: pre-norm decoder with grouped-query attention, rotary embedding and SwiGLU.
#include "layers/ops.h"
#include "model/families.h"

namespace longspan {
namespace {

class Llama final : public TransformerModel {
 public:
  Llama(const ModelSpec& spec, const at::TensorOptions& tensors, const HeadLossOptions& options)
      : TransformerModel(spec, /*expert_group=*/1, tensors, options) {}

  std::vector<at::Tensor> pre(const ParameterAccess& access, int64_t layer, const at::Tensor& x_TC,
                              const TokenPlaces& places) const override {
    auto qkv = attention_projections(access, parameters().layer(layer), spec(), x_TC);
    return {rope(qkv[0], places.rope), rope(qkv[1], places.rope), qkv[2]};
  }

  at::Tensor post(const ParameterAccess& access, int64_t layer,
                  const PostInputs& inputs) const override {
    return dense_output(access, parameters().layer(layer), spec(), inputs.mixed, inputs.x);
  }
};

}  // namespace

std::unique_ptr<TransformerModel> make_llama(const ModelSpec& spec,
                                             const at::TensorOptions& tensors,
                                             const HeadLossOptions& options) {
  return std::make_unique<Llama>(spec, tensors, options);
}

}  // namespace longspan
