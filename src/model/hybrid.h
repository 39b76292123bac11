// Private to model/: decoders whose layers look back in several ways (glm5_next, kimi_linear).
//
// What a layer is follows from ModelSpec alone: the kind of its mix, experts or a dense
// feed-forward part, one residual or several streams. hybrid_inputs.cpp makes the mixes' inputs
// (pre), hybrid.cpp the rest.
//
// Legend: T tokens, N streams, C model width. The row between layers is [C], or [N, C].
// Immutable; any thread.
#pragma once

#include "layers/hyper_connection.h"
#include "model/transformer_model.h"

namespace longspan {

class Hybrid final : public TransformerModel {
 public:
  Hybrid(const ModelSpec& spec, int64_t expert_group, const at::TensorOptions& tensors,
         const HeadLossOptions& options);

  std::vector<int64_t> hidden_row() const override;

  std::vector<at::Tensor> pre(const ParameterAccess& access, int64_t layer, const at::Tensor& x,
                              const TokenPlaces& places) const override;
  at::Tensor post(const ParameterAccess& access, int64_t layer,
                  const PostInputs& inputs) const override;
  std::vector<at::Tensor> post_to_experts(const ParameterAccess& access, int64_t layer,
                                          const PostInputs& inputs,
                                          std::vector<at::Tensor>& choices) const override;
  at::Tensor combine(const ParameterAccess& access, int64_t layer,
                     const at::Tensor& expert_output_TC,
                     std::span<const at::Tensor> post_outputs) const override;

 protected:
  at::Tensor to_streams(const at::Tensor& x_TC) const override;
  at::Tensor from_streams(const at::Tensor& x) const override;
  at::Tensor sum_of_streams(const at::Tensor& dx) const override;
  at::Tensor share_of_streams(const at::Tensor& dx_TC) const override;

 private:
  enum class Site { kAttention, kFeedForward };
  // A part's input, and, of several streams, what writing its output back takes.
  struct Reading {
    at::Tensor x_TC;
    std::vector<at::Tensor> maps;  // write, mix; none with a single residual
  };

  bool has_streams() const { return spec().hyper.streams > 1; }
  const LayerParameters& ids(int64_t layer) const { return parameters().layer(layer); }
  MixKind mix_kind(int64_t layer) const { return spec().layer_kind(layer).mix; }

  Reading read(const ParameterAccess& access, int64_t layer, Site site, const at::Tensor& x) const;
  at::Tensor write(const at::Tensor& x, const at::Tensor& y_TC,
                   std::span<const at::Tensor> maps) const;
  at::Tensor norm(const ParameterAccess& access, const at::Tensor& x_TC, int64_t weight,
                  double epsilon) const;

  // Inputs of the mix, from the normed input; linear attention gives its output gate besides.
  std::vector<at::Tensor> linear_inputs(const ParameterAccess& access, int64_t layer,
                                        const at::Tensor& x_TC) const;
  std::vector<at::Tensor> sparse_inputs(const ParameterAccess& access, int64_t layer,
                                        const at::Tensor& x_TC, const TokenPlaces& places) const;
  std::vector<at::Tensor> attention_inputs(const ParameterAccess& access, int64_t layer,
                                           const at::Tensor& x_TC) const;
  // c^q of low-rank queries, or the input itself.
  at::Tensor query_latent(const ParameterAccess& access, int64_t layer,
                          const at::Tensor& x_TC) const;
  at::Tensor queries(const ParameterAccess& access, int64_t layer, const at::Tensor& latent) const;

  // The layer's input with attention's output written back.
  at::Tensor after_mix(const ParameterAccess& access, int64_t layer,
                       const PostInputs& inputs) const;
  at::Tensor mix_output(const ParameterAccess& access, int64_t layer,
                        const PostInputs& inputs) const;
};

}  // namespace longspan
