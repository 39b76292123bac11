#include "spec/flops.h"

#include <algorithm>

#include "base/check.h"

namespace longspan {
namespace {

int64_t linear_attention_weights(const ModelSpec& spec) {
  const LinearAttentionSpec& kda = spec.linear_attention;
  const int64_t projections = 4 * spec.hidden_size * kda.width();  // q, k, v, o
  const int64_t gates = 2 * kda.head_dim * (spec.hidden_size + kda.width());
  return projections + gates + spec.hidden_size * kda.num_heads;
}

int64_t latent_attention_weights(const ModelSpec& spec) {
  const LatentAttentionSpec& mla = spec.latent_attention;
  const int64_t query_width = mla.num_heads * mla.qk_dim();
  const int64_t queries = mla.q_lora_rank > 0 ? mla.q_lora_rank * (spec.hidden_size + query_width)
                                              : spec.hidden_size * query_width;
  return queries + spec.hidden_size * mla.latent_width() +
         mla.kv_lora_rank * mla.num_heads * (mla.nope_dim + mla.v_dim) +
         spec.hidden_size * mla.num_heads * mla.v_dim;
}

int64_t index_weights(const ModelSpec& spec) {
  const IndexSpec& index = spec.index;
  return spec.latent_attention.q_lora_rank * index.num_heads * index.head_dim +
         spec.hidden_size * (2 * index.head_dim + index.num_heads);
}

int64_t mix_weights(const ModelSpec& spec, MixKind mix) {
  switch (mix) {
    case MixKind::kLinearAttention:
      return linear_attention_weights(spec);
    case MixKind::kSparseAttention:
      return latent_attention_weights(spec) + index_weights(spec);
    case MixKind::kAttention:
      return spec.is_hybrid() ? latent_attention_weights(spec)
                              : 2 * spec.hidden_size * (spec.query_width() + spec.kv_width());
  }
  throw InternalError("unknown kind of mix");
}

int64_t feed_forward_weights(const ModelSpec& spec, bool has_experts) {
  if (!has_experts) return 3 * spec.hidden_size * spec.intermediate_size;
  const ExpertSpec& experts = spec.experts;
  return spec.hidden_size *
         (experts.num_experts + 3 * (experts.top_k * experts.width + experts.shared_width()));
}

double as_double(int64_t value) {
  return static_cast<double>(value);
}

// Of all parts whose backward costs twice as much.
double differentiated_flops(const ModelSpec& spec, const ModelWork& work) {
  const LinearAttentionSpec& kda = spec.linear_attention;
  const LatentAttentionSpec& mla = spec.latent_attention;
  const double matrix = 2.0 * as_double(matrix_weights(spec));
  const double linear = as_double(spec.count_layers(MixKind::kLinearAttention) * kda.width()) *
                        as_double(10 * kLinearChunk + 6 * kda.head_dim);
  const int64_t pair_width =
      spec.is_hybrid() ? mla.num_heads * (mla.qk_dim() + mla.v_dim) : 2 * spec.query_width();
  const double attention = 2.0 * as_double(spec.count_layers(MixKind::kAttention) * pair_width);
  const double selected = 4.0 * as_double(spec.count_layers(MixKind::kSparseAttention) *
                                          mla.num_heads * mla.latent_width());
  return (matrix + linear) * as_double(work.tokens) + attention * work.pairs +
         selected * work.selected_pairs;
}

double index_flops(const ModelSpec& spec, const ModelWork& work) {
  return 2.0 *
         as_double(spec.count_layers(MixKind::kSparseAttention) * spec.index.num_heads *
                   spec.index.head_dim) *
         work.scored_pools;
}

// The sum of n mod pool over n = 0 .. count - 1.
int64_t sum_of_remainders(int64_t count, int64_t pool) {
  const int64_t rest = count % pool;
  return count / pool * (pool * (pool - 1) / 2) + rest * (rest - 1) / 2;
}

ModelWork plain_work(const ModelSpec& spec, int64_t tokens, double pairs) {
  LONGSPAN_CHECK(spec.count_layers(MixKind::kSparseAttention) == 0,
                 "the work of sparse attention does not follow from its pairs");
  return {.tokens = tokens, .pairs = pairs};
}

}  // namespace

ModelWork& ModelWork::operator+=(const ModelWork& other) {
  tokens += other.tokens;
  pairs += other.pairs;
  selected_pairs += other.selected_pairs;
  scored_pools += other.scored_pools;
  return *this;
}

ModelWork document_work(const ModelSpec& spec, int64_t document_tokens) {
  ModelWork work{.tokens = document_tokens, .pairs = as_double(causal_pairs(document_tokens))};
  if (spec.count_layers(MixKind::kSparseAttention) == 0) return work;
  // The query that sees n tokens selects min(n, topk + n mod pool), and scores n / pool pools.
  const int64_t topk = spec.index.topk, pool = spec.index.pool;
  const int64_t dense = std::min(document_tokens, topk - 1), sparse = document_tokens - dense;
  work.selected_pairs =
      as_double(causal_pairs(dense) + sparse * topk + sum_of_remainders(sparse, pool));
  const int64_t full = (document_tokens + 1) / pool, rest = (document_tokens + 1) % pool;
  work.scored_pools = as_double(pool * (full * (full - 1) / 2) + rest * full);
  return work;
}

int64_t matrix_weights(const ModelSpec& spec) {
  int64_t weights = spec.hidden_size * spec.vocab_size;
  for (const MixKind mix :
       {MixKind::kAttention, MixKind::kLinearAttention, MixKind::kSparseAttention}) {
    const int64_t layers = spec.count_layers(mix);
    if (layers > 0) weights += layers * mix_weights(spec, mix);
  }
  const int64_t sparse = spec.count_expert_layers();
  if (sparse > 0) weights += sparse * feed_forward_weights(spec, true);
  weights += (spec.num_layers - sparse) * feed_forward_weights(spec, false);
  if (spec.hyper.streams > 1) {
    weights += spec.num_layers * 2 * spec.hyper.maps() * spec.hyper.streams * spec.hidden_size;
  }
  return weights;
}

int64_t causal_pairs(int64_t document_tokens) {
  return document_tokens * (document_tokens + 1) / 2;
}

double forward_flops(const ModelSpec& spec, const ModelWork& work) {
  return differentiated_flops(spec, work) + index_flops(spec, work);
}

double training_flops(const ModelSpec& spec, const ModelWork& work) {
  return 3 * differentiated_flops(spec, work) + index_flops(spec, work);
}

double forward_flops(const ModelSpec& spec, int64_t tokens, double pairs) {
  return forward_flops(spec, plain_work(spec, tokens, pairs));
}

double training_flops(const ModelSpec& spec, int64_t tokens, double pairs) {
  return training_flops(spec, plain_work(spec, tokens, pairs));
}

}  // namespace longspan
