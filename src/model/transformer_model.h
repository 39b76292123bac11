// A decoder of one family as the executor sees it: embedding, two segments per layer around core
// attention, and the head with its loss. Nothing here knows of ranks, chunks or shards.
//
//   const auto model = make_model(spec, at::kFloat);
//   auto rope = model->rope_table(positions);             // once per piece
//   at::Tensor x_TC = model->embed(access, tokens);
//   std::vector<at::Tensor> qkv = model->pre(access, layer, x_TC, {rope, positions});
//   ... o_THK from core attention ...
//   x_TC = model->post(access, layer, {o_THK, x_TC});
//   HeadLossResult loss = model->head_loss(access, x_TC, targets, 1 / weight_sum);
//
// pre and post are bodies of segments (layers/segment.h): with grad mode on they leave a graph that
// keeps activations only. The executor has the weights of the unit gathered, and in backward its
// gradients open, before it calls.
//
// Legend: T tokens of the piece, H query heads, G key/value heads, K head width, C model width.
// Adding a family: copy llama.cpp, name it in make_model.
// Immutable; ranks of one process may share one model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/attention_shape.h"
#include "layers/head_loss.h"
#include "layers/parameter_access.h"
#include "spec/model_spec.h"
#include "spec/parameter_table.h"

namespace longspan {

struct RopeTable;

// Where a piece's tokens stand in their documents.
struct TokenPlaces {
  std::shared_ptr<const RopeTable> rope;  // null for a model without rotary embedding
  std::span<const int64_t> positions;
};

// What a layer's post segment takes.
struct PostInputs {
  at::Tensor mixed;                  // output of core attention [T, H, K], or of the mix
  at::Tensor x;                      // the layer's input
  std::span<const at::Tensor> side;  // what pre gave beyond the mix's inputs
};

class TransformerModel {
 public:
  virtual ~TransformerModel() = default;

  const ModelSpec& spec() const { return spec_; }
  const ParameterTable& parameters() const { return parameters_; }
  // Type and device of activations.
  const at::TensorOptions& tensors() const { return tensors_; }
  at::ScalarType scalar_type() const { return at::typeMetaToScalarType(tensors_.dtype()); }
  at::Device device() const { return tensors_.device(); }
  int64_t num_layers() const { return spec_.num_layers; }
  int64_t hidden_size() const { return spec_.hidden_size; }
  // One token's row between two layers.
  virtual std::vector<int64_t> hidden_row() const { return {hidden_size()}; }
  // Of core attention; also where no layer has it.
  const AttentionShape& attention_shape() const { return attention_shape_; }

  // `positions` are document positions. Null for families without rotary embedding.
  std::shared_ptr<const RopeTable> rope_table(std::span<const int64_t> positions) const;

  at::Tensor embed(const ParameterAccess& access, std::span<const int32_t> tokens) const;
  void embed_backward(const ParameterAccess& access, std::span<const int32_t> tokens,
                      const at::Tensor& dx) const;

  // Of all feed-forward parts; kNoSwigluLimit if there is none.
  double swiglu_limit() const;
  bool has_experts(int64_t layer) const { return spec_.layer_kind(layer).has_experts; }

  // What the layer's mix takes (core attention: queries [T, H, K], keys and values [T, G, K]), then
  // what post needs besides what the mix makes of it.
  virtual std::vector<at::Tensor> pre(const ParameterAccess& access, int64_t layer,
                                      const at::Tensor& x, const TokenPlaces& places) const = 0;
  // The layer's output; for layers without experts.
  virtual at::Tensor post(const ParameterAccess& access, int64_t layer,
                          const PostInputs& inputs) const = 0;
  // Layers with experts. First the tokens that go to the experts [T, C], the weights of the chosen
  // experts [T, k], then whatever combine needs besides. `choices` is filled with the experts' ids
  // [T, k], or, if it is filled already, repeated.
  virtual std::vector<at::Tensor> post_to_experts(const ParameterAccess& access, int64_t layer,
                                                  const PostInputs& inputs,
                                                  std::vector<at::Tensor>& choices) const;
  // The layer's output, from the weighted sum of the experts' outputs [T, C] and what
  // post_to_experts gave, without the weights.
  virtual at::Tensor combine(const ParameterAccess& access, int64_t layer,
                             const at::Tensor& expert_output_TC,
                             std::span<const at::Tensor> post_outputs) const;

  // Loss and all gradients of final norm and head; see layers/head_loss.h.
  HeadLossResult head_loss(const ParameterAccess& access, const at::Tensor& x,
                           const HeadTargets& targets, double scale) const;
  // Forward only.
  std::vector<double> token_losses(const ParameterAccess& access, const at::Tensor& x,
                                   std::span<const int32_t> targets) const;
  at::Tensor logits(const ParameterAccess& access, const at::Tensor& x) const;

 protected:
  TransformerModel(const ModelSpec& spec, int64_t expert_group, const at::TensorOptions& tensors,
                   const HeadLossOptions& options);

  // From an embedding to the row between layers and from the last one to the head; and the
  // gradients of both. Families with one residual leave them alone.
  virtual at::Tensor to_streams(const at::Tensor& x_TC) const { return x_TC; }
  virtual at::Tensor from_streams(const at::Tensor& x) const { return x; }
  virtual at::Tensor sum_of_streams(const at::Tensor& dx) const { return dx; }
  virtual at::Tensor share_of_streams(const at::Tensor& dx_TC) const { return dx_TC; }

 private:
  HeadParameters head() const;

  ModelSpec spec_;
  at::TensorOptions tensors_;
  HeadLossOptions head_options_;
  ParameterTable parameters_;
  RopeFrequencies rope_;
  AttentionShape attention_shape_;
};

// `tensors` give type and device of all activations: at::kFloat or at::kDouble, on a GPU also
// at::kBFloat16. `expert_group`: over how many ranks the experts of a layer are spread.
std::unique_ptr<TransformerModel> make_model(const ModelSpec& spec,
                                             const at::TensorOptions& tensors,
                                             int64_t expert_group = 1,
                                             const HeadLossOptions& options = {});

}  // namespace longspan
