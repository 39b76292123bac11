#include "spec/check_hybrid_spec.h"

#include <cmath>
#include <tuple>
#include <vector>

#include "base/error.h"

namespace longspan {
namespace {

// With these limits no product that counts parameters leaves 64 bits.
constexpr int64_t kWidth = int64_t{1} << 17;
constexpr int64_t kLayers = int64_t{1} << 12;
constexpr int64_t kExperts = int64_t{1} << 12;
constexpr int64_t kHeads = int64_t{1} << 10;
constexpr int64_t kHeadWidth = int64_t{1} << 12;
constexpr int64_t kTopk = int64_t{1} << 24;
constexpr int64_t kSmall = 64;

// Key, value, smallest, largest.
using Size = std::tuple<const char*, int64_t, int64_t, int64_t>;

void add_linear_sizes(const LinearAttentionSpec& kda, std::vector<Size>& sizes) {
  sizes.push_back({"linear_attn_config.num_heads", kda.num_heads, 1, kHeads});
  sizes.push_back({"linear_attn_config.head_dim", kda.head_dim, 1, kHeadWidth});
  sizes.push_back({"linear_attn_config.short_conv_kernel_size", kda.conv_taps, 2, kSmall});
}

void add_latent_sizes(const LatentAttentionSpec& mla, std::vector<Size>& sizes) {
  sizes.push_back({"num_attention_heads", mla.num_heads, 1, kHeads});
  sizes.push_back({"q_lora_rank", mla.q_lora_rank, 0, kWidth});
  sizes.push_back({"kv_lora_rank", mla.kv_lora_rank, 1, kWidth});
  sizes.push_back({"qk_nope_head_dim", mla.nope_dim, 1, kHeadWidth});
  sizes.push_back({"qk_rope_head_dim", mla.rope_dim, 0, kHeadWidth});
  sizes.push_back({"v_head_dim", mla.v_dim, 1, kHeadWidth});
}

void add_index_sizes(const ModelSpec& spec, std::vector<Size>& sizes) {
  sizes.push_back({"q_lora_rank", spec.latent_attention.q_lora_rank, 1, kWidth});
  sizes.push_back({"index_n_heads", spec.index.num_heads, 1, kHeads});
  sizes.push_back({"index_head_dim", spec.index.head_dim, 1, kHeadWidth});
  sizes.push_back({"index_topk", spec.index.topk, 1, kTopk});
  sizes.push_back({"index_kpool", spec.index.pool, 1, kSmall});
}

void add_expert_sizes(const ExpertSpec& experts, std::vector<Size>& sizes) {
  sizes.push_back({"number of experts", experts.num_experts, 1, kExperts});
  sizes.push_back({"num_experts_per_tok", experts.top_k, 1, experts.num_experts});
  sizes.push_back({"number of shared experts", experts.num_shared, 1, kSmall});
  sizes.push_back({"moe_intermediate_size", experts.width, 1, kWidth});
}

std::vector<Size> sizes_of(const ModelSpec& spec) {
  std::vector<Size> sizes = {{"num_hidden_layers", spec.num_layers, 1, kLayers},
                             {"hidden_size", spec.hidden_size, 1, kWidth},
                             {"intermediate_size", spec.intermediate_size, 1, kWidth},
                             {"hc_mult", spec.hyper.streams, 1, kSmall},
                             {"num_nextn_predict_layers", spec.prediction_layers, 0, kSmall}};
  if (spec.count_layers(MixKind::kLinearAttention) > 0) {
    add_linear_sizes(spec.linear_attention, sizes);
  }
  if (spec.count_layers(MixKind::kLinearAttention) < spec.num_layers) {
    add_latent_sizes(spec.latent_attention, sizes);
  }
  if (spec.count_layers(MixKind::kSparseAttention) > 0) add_index_sizes(spec, sizes);
  if (spec.count_expert_layers() > 0) add_expert_sizes(spec.experts, sizes);
  if (spec.hyper.streams > 1) {
    sizes.push_back({"hc_sinkhorn_iters", spec.hyper.sinkhorn_iterations, 1, 1000});
  }
  return sizes;
}

void check_reals(const ModelSpec& spec, const std::string& origin) {
  const auto check = [&](bool good, const char* key, double value, const char* rule) {
    if (good && std::isfinite(value)) return;
    throw UserError(text(origin, ": ", key, " = ", value, "; it must be ", rule));
  };
  if (spec.count_layers(MixKind::kLinearAttention) > 0 &&
      spec.linear_attention.gate == DecayGateKind::kBounded) {
    const double bound = spec.linear_attention.gate_lower_bound;
    check(bound < 0 && bound >= -5, "gate_lower_bound", bound,
          "below 0 and at least -5, so that 16 tokens of decay stay within float32");
  }
  if (spec.count_expert_layers() > 0) {
    check(true, "routed_scaling_factor", spec.experts.route_scale, "finite");
  }
  if (spec.hyper.streams > 1) check(spec.hyper.eps > 0, "hc_eps", spec.hyper.eps, "above 0");
  check(spec.swiglu_limit >= 0, "swiglu_limit", spec.swiglu_limit, "above 0");
}

}  // namespace

void check_hybrid_spec(const ModelSpec& spec, const std::string& origin) {
  for (const auto& [name, value, least, most] : sizes_of(spec)) {
    if (value < least || value > most) {
      throw UserError(
          text(origin, ": ", name, " = ", value, "; it must be from ", least, " to ", most));
    }
  }
  if (static_cast<int64_t>(spec.layer_kinds.size()) != spec.num_layers) {
    throw UserError(text(origin, ": the kinds of ", spec.layer_kinds.size(),
                         " layers are given, num_hidden_layers is ", spec.num_layers));
  }
  if (spec.tied_embeddings) {
    throw UserError(text(origin, ": tie_word_embeddings = true is not implemented for ",
                         model_family_name(spec.family), "; only false is"));
  }
  if (spec.count_layers(MixKind::kSparseAttention) > 0 && spec.index.topk % spec.index.pool != 0) {
    throw UserError(text(origin, ": index_topk = ", spec.index.topk,
                         " is not a multiple of index_kpool = ", spec.index.pool));
  }
  check_reals(spec, origin);
}

std::string first_hybrid_difference(const ModelSpec& spec, const ModelSpec& other) {
  const auto unlike = [](const char* part) { return text("the ", part, " differ"); };
  if (spec.layer_kinds != other.layer_kinds) return unlike("kinds of the layers");
  if (spec.linear_attention != other.linear_attention) return unlike("keys of linear attention");
  if (spec.latent_attention != other.latent_attention) return unlike("keys of latent attention");
  if (spec.index != other.index) return unlike("keys of the index");
  if (spec.experts != other.experts) return unlike("keys of the experts");
  if (spec.hyper != other.hyper) return unlike("keys of the residual streams");
  if (spec.swiglu_limit != other.swiglu_limit) {
    return text("swiglu_limit is ", spec.swiglu_limit, ", not ", other.swiglu_limit);
  }
  return "";
}

}  // namespace longspan
