#include "train/sequence_mixes.h"

#include <cmath>
#include <map>

#include "linear_attention/linear_attention_mix.h"
#include "model/transformer_model.h"
#include "sparse_attention/sparse_attention_mix.h"

namespace longspan {
namespace {

std::shared_ptr<const SequenceMix> make_linear_mix(const TransformerModel& model) {
  std::map<int64_t, ConvolutionParameters> by_layer;
  for (int64_t layer = 0; layer < model.num_layers(); ++layer) {
    if (model.spec().layer_kind(layer).mix != MixKind::kLinearAttention) continue;
    const LayerParameters& ids = model.parameters().layer(layer);
    by_layer[layer] = {ids.q_conv, ids.k_conv, ids.v_conv};
  }
  return std::make_shared<LinearAttentionMix>(linear_attention_shape(model.spec()),
                                              std::move(by_layer));
}

double inverse_root(int64_t width) {
  return 1 / std::sqrt(static_cast<double>(width));
}

std::shared_ptr<const SequenceMix> make_sparse_mix(const TransformerModel& model) {
  const IndexShape index = index_shape(model.spec());
  const auto element_bytes = static_cast<int64_t>(model.tensors().dtype().itemsize());
  return std::make_shared<SparseAttentionMix>(SparseAttentionOptions{
      .attention = sparse_attention_shape(model.spec()),
      .index = index,
      .plans = planned_index_scoring(index,
                                     index_cost_options(element_bytes, !model.device().is_cpu()))});
}

}  // namespace

LinearAttentionShape linear_attention_shape(const ModelSpec& spec) {
  const LinearAttentionSpec& sizes = spec.linear_attention;
  return {.heads = sizes.num_heads,
          .key_width = sizes.head_dim,
          .value_width = sizes.head_dim,
          .conv_taps = sizes.conv_taps};
}

IndexShape index_shape(const ModelSpec& spec) {
  return {.heads = spec.index.num_heads,
          .width = spec.index.head_dim,
          .pool_tokens = spec.index.pool,
          .top_pools = spec.index.selected_pools(),
          .scale = inverse_root(spec.index.head_dim)};
}

SparseAttentionShape sparse_attention_shape(const ModelSpec& spec) {
  const LatentAttentionSpec& attention = spec.latent_attention;
  return {.heads = attention.num_heads,
          .width = attention.kv_lora_rank,
          .pool_tokens = spec.index.pool,
          .scale = inverse_root(attention.qk_dim())};
}

std::vector<ScheduledLayer> scheduled_layers(const ModelSpec& spec) {
  std::vector<ScheduledLayer> layers;
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    const LayerKind kind = spec.layer_kind(layer);
    layers.push_back(
        {.core_attention = kind.mix == MixKind::kAttention, .experts = kind.has_experts});
  }
  return layers;
}

SequenceMixes::SequenceMixes(const TransformerModel& model) {
  std::map<MixKind, std::shared_ptr<const SequenceMix>> by_kind;
  for (int64_t layer = 0; layer < model.num_layers(); ++layer) {
    const MixKind kind = model.spec().layer_kind(layer).mix;
    auto found = by_kind.find(kind);
    if (found == by_kind.end()) found = by_kind.emplace(kind, make_mix(kind, model)).first;
    by_layer_.push_back(found->second);
  }
}

std::shared_ptr<const SequenceMix> SequenceMixes::make_mix(MixKind kind,
                                                           const TransformerModel& model) {
  switch (kind) {
    case MixKind::kLinearAttention:
      return make_linear_mix(model);
    case MixKind::kSparseAttention:
      return make_sparse_mix(model);
    case MixKind::kAttention:
      break;
  }
  return nullptr;
}

}  // namespace longspan
