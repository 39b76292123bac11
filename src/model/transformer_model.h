// A decoder of one family as the executor sees it: embedding, two segments per layer around core
// attention, and the head with its loss. Nothing here knows of ranks, chunks or shards.
//
//   const auto model = make_model(spec, at::kFloat);
//   auto rope = model->rope_table(positions);             // once per piece
//   at::Tensor x_TC = model->embed(access, tokens);
//   std::vector<at::Tensor> qkv = model->pre(access, layer, x_TC, rope);
//   ... o_THK from core attention ...
//   x_TC = model->post(access, layer, o_THK, x_TC);
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
  const AttentionShape& attention_shape() const { return attention_shape_; }

  // `positions` are document positions.
  std::shared_ptr<const RopeTable> rope_table(std::span<const int64_t> positions) const;

  at::Tensor embed(const ParameterAccess& access, std::span<const int32_t> tokens) const;
  void embed_backward(const ParameterAccess& access, std::span<const int32_t> tokens,
                      const at::Tensor& dx_TC) const;

  // Queries [T, H, K], keys and values [T, G, K], as core attention takes them.
  virtual std::vector<at::Tensor> pre(const ParameterAccess& access, int64_t layer,
                                      const at::Tensor& x_TC,
                                      const std::shared_ptr<const RopeTable>& rope) const = 0;
  // The layer's output, from attention's output and the layer's input.
  virtual at::Tensor post(const ParameterAccess& access, int64_t layer, const at::Tensor& o_THK,
                          const at::Tensor& x_TC) const = 0;

  // Loss and all gradients of final norm and head; see layers/head_loss.h.
  HeadLossResult head_loss(const ParameterAccess& access, const at::Tensor& x_TC,
                           const HeadTargets& targets, double scale) const;
  // Forward only.
  std::vector<double> token_losses(const ParameterAccess& access, const at::Tensor& x_TC,
                                   std::span<const int32_t> targets) const;
  at::Tensor logits(const ParameterAccess& access, const at::Tensor& x_TC) const;

 protected:
  TransformerModel(const ModelSpec& spec, const at::TensorOptions& tensors,
                   const HeadLossOptions& options);

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
// at::kBFloat16.
std::unique_ptr<TransformerModel> make_model(const ModelSpec& spec,
                                             const at::TensorOptions& tensors,
                                             const HeadLossOptions& options = {});

}  // namespace longspan
