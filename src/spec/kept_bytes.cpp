#include "spec/kept_bytes.h"

#include <algorithm>

#include "base/check.h"

namespace longspan {
namespace {

constexpr int64_t kIdBytes = 4;

struct LayerBytes {
  int64_t mix_output = 0;
  int64_t context = 0;
  int64_t choices = 0;
  int64_t chunk_border = 0;
};

LayerBytes linear_attention_bytes(const LinearAttentionSpec& kda, int64_t value_bytes,
                                  int64_t sum_bytes) {
  const int64_t state = kda.width() * kda.head_dim;
  const int64_t taps = 3 * kda.width() * (kda.conv_taps - 1);  // of q, k and v
  return {.mix_output = kda.width() * value_bytes, .chunk_border = (state + taps) * sum_bytes};
}

LayerBytes sparse_attention_bytes(const ModelSpec& spec, int64_t value_bytes, int64_t sum_bytes) {
  const LatentAttentionSpec& mla = spec.latent_attention;
  const int64_t latent = mla.latent_width() * value_bytes;
  const int64_t context = latent + spec.index.head_dim * value_bytes / spec.index.pool;
  // Where attention does not run again, its backward reads the context.
  return {.mix_output = mla.num_heads * (latent + sum_bytes) + context,
          .context = context,
          .choices = spec.index.selected_pools() * kIdBytes};
}

LayerBytes attention_bytes(const ModelSpec& spec, int64_t value_bytes, int64_t sum_bytes) {
  return {.mix_output = spec.query_width() * value_bytes + spec.num_query_heads * sum_bytes,
          .context = 2 * spec.kv_width() * value_bytes};
}

LayerBytes layer_bytes(const ModelSpec& spec, MixKind mix, int64_t value_bytes) {
  const int64_t sum_bytes = std::max<int64_t>(4, value_bytes);
  switch (mix) {
    case MixKind::kLinearAttention:
      return linear_attention_bytes(spec.linear_attention, value_bytes, sum_bytes);
    case MixKind::kSparseAttention:
      return sparse_attention_bytes(spec, value_bytes, sum_bytes);
    case MixKind::kAttention:
      return attention_bytes(spec, value_bytes, sum_bytes);
  }
  throw InternalError("unknown kind of mix");
}

}  // namespace

int64_t KeptBytes::of_mode(std::string_view mode) const {
  if (mode == "layer_inputs_attention") return layer_inputs + mix_outputs + choices;
  if (mode == "layer_inputs") return layer_inputs + choices;
  if (mode == "context_only") return context + choices;
  throw InternalError(text("no closed form of the stored mode ", mode));
}

KeptBytes kept_bytes(const ModelSpec& spec, int64_t value_bytes, bool on_gpu) {
  KeptBytes kept{.layer_inputs =
                     (spec.num_layers + 1) * spec.hyper.streams * spec.hidden_size * value_bytes};
  for (const MixKind mix :
       {MixKind::kAttention, MixKind::kLinearAttention, MixKind::kSparseAttention}) {
    const int64_t layers = spec.count_layers(mix);
    if (layers == 0) continue;
    const LayerBytes of_layer = layer_bytes(spec, mix, value_bytes);
    kept.mix_outputs += layers * of_layer.mix_output;
    kept.context += layers * of_layer.context;
    kept.choices += layers * of_layer.choices;
    kept.chunk_border += layers * of_layer.chunk_border;
  }
  const int64_t copies = on_gpu ? 2 : 1;
  kept.choices += copies * spec.count_expert_layers() * spec.experts.top_k * kIdBytes;
  return kept;
}

}  // namespace longspan
