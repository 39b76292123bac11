// What a hybrid model has beyond a plain decoder: layers of several kinds, latent attention with an
// index, linear attention with a decay, experts, several residual streams. Parts of ModelSpec.
//
//   if (spec.layer_kind(i).mix == MixKind::kSparseAttention) ... spec.index.topk ...
//
// Plain values; any thread.
#pragma once

#include <cstdint>

namespace longspan {

// How the tokens of a layer see earlier ones.
enum class MixKind {
  kAttention,        // softmax over all keys
  kLinearAttention,  // a state with decay (KDA), behind short convolutions
  kSparseAttention,  // softmax over the keys that an index of pooled keys selects (DSA)
};

struct LayerKind {
  MixKind mix = MixKind::kAttention;
  bool has_experts = false;  // else a dense feed-forward part

  bool operator==(const LayerKind&) const = default;
};

// The logarithm of the decay, from z = gate projection + dt_bias and a = exp(A_log) of the head.
enum class DecayGateKind {
  kBounded,   // lower_bound * sigmoid(a z)
  kSoftplus,  // -a softplus(z)
};

// Keys and values have the same width. The norm of queries and keys adds 1e-6 to the square sum.
struct LinearAttentionSpec {
  int64_t num_heads = 0;
  int64_t head_dim = 0;  // also the inner width of the low-rank gates
  int64_t conv_taps = 0;
  DecayGateKind gate = DecayGateKind::kBounded;
  double gate_lower_bound = 0;  // of kBounded; below 0

  int64_t width() const { return num_heads * head_dim; }
  bool operator==(const LinearAttentionSpec&) const = default;
};

// Keys and values of all heads come from one latent row per token. There are no positions: the
// rope part of a key is a plain part of the key that all heads share.
struct LatentAttentionSpec {
  int64_t num_heads = 0;
  int64_t q_lora_rank = 0;  // 0: queries come from the input by one matrix
  int64_t kv_lora_rank = 0;
  int64_t nope_dim = 0;  // of a key, from the latent, one for each head
  int64_t rope_dim = 0;  // of a key, beside the latent, shared by the heads; not normalised
  int64_t v_dim = 0;
  double norm_eps = 0;  // of the norms over the latents

  int64_t qk_dim() const { return nope_dim + rope_dim; }
  // What one token leaves for later ones.
  int64_t latent_width() const { return kv_lora_rank + rope_dim; }
  bool operator==(const LatentAttentionSpec&) const = default;
};

// Selection is in pools of consecutive tokens, counted from the document's start. The norm of the
// index keys has eps 1e-6. None of its parameters is trained.
struct IndexSpec {
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  int64_t topk = 0;  // keys; a multiple of pool
  int64_t pool = 0;  // tokens

  int64_t selected_pools() const { return topk / pool; }
  bool operator==(const IndexSpec&) const = default;
};

// Router: sigmoid scores, the best top_k of (score + bias) chosen, their scores normalised to a sum
// of 1 and multiplied by route_scale.
struct ExpertSpec {
  int64_t num_experts = 0;
  int64_t top_k = 0;
  int64_t num_shared = 0;  // experts that every token sees, as one of num_shared times the width
  int64_t width = 0;       // inner width of one expert
  double route_scale = 1;

  int64_t shared_width() const { return num_shared * width; }
  bool operator==(const ExpertSpec&) const = default;
};

// Residual streams that are read, written and mixed at each part of a layer (mHC).
struct HyperSpec {
  int64_t streams = 1;  // 1: a plain residual
  int64_t sinkhorn_iterations = 0;
  double eps = 0;  // of reading weights and Sinkhorn sums

  // Reading, writing and mixing weights of one token.
  int64_t maps() const { return streams * (2 + streams); }
  bool operator==(const HyperSpec&) const = default;
};

}  // namespace longspan
