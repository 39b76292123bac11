#include "train/sequence_mixes.h"

#include <cmath>
#include <map>

#include "linear_attention/linear_attention_mix.h"
#include "model/transformer_model.h"
#include "sparse_attention/sparse_attention_mix.h"

namespace longspan {
namespace {

std::shared_ptr<const SequenceMix> make_linear_mix(const TransformerModel& model) {
  const LinearAttentionSpec& sizes = model.spec().linear_attention;
  std::map<int64_t, ConvolutionParameters> by_layer;
  for (int64_t layer = 0; layer < model.num_layers(); ++layer) {
    if (model.spec().layer_kind(layer).mix != MixKind::kLinearAttention) continue;
    const LayerParameters& ids = model.parameters().layer(layer);
    by_layer[layer] = {ids.q_conv, ids.k_conv, ids.v_conv};
  }
  return std::make_shared<LinearAttentionMix>(LinearAttentionShape{.heads = sizes.num_heads,
                                                                   .key_width = sizes.head_dim,
                                                                   .value_width = sizes.head_dim,
                                                                   .conv_taps = sizes.conv_taps},
                                              std::move(by_layer));
}

double inverse_root(int64_t width) {
  return 1 / std::sqrt(static_cast<double>(width));
}

std::shared_ptr<const SequenceMix> make_sparse_mix(const TransformerModel& model) {
  const LatentAttentionSpec& attention = model.spec().latent_attention;
  const IndexSpec& index = model.spec().index;
  const IndexShape shape{.heads = index.num_heads,
                         .width = index.head_dim,
                         .pool_tokens = index.pool,
                         .top_pools = index.selected_pools(),
                         .scale = inverse_root(index.head_dim)};
  return std::make_shared<SparseAttentionMix>(SparseAttentionOptions{
      .attention = {.heads = attention.num_heads,
                    .width = attention.kv_lora_rank,
                    .pool_tokens = index.pool,
                    .scale = inverse_root(attention.qk_dim())},
      .index = shape,
      .plans = planned_index_scoring(
          shape, index_cost_options(static_cast<int64_t>(model.tensors().dtype().itemsize()),
                                    !model.device().is_cpu()))});
}

}  // namespace

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
