#include "train/kernel_audit.h"

#include <algorithm>
#include <cmath>

#include "attention/attention_kernel.h"
#include "attention/library_attention.h"
#include "base/error.h"
#include "device/device.h"
#include "linear_attention/kda_piece.h"
#include "sparse_attention/pool_ranking.h"
#include "sparse_attention/selected_attention.h"
#include "train/sequence_mixes.h"

namespace longspan {

std::string KernelUse::line() const {
  return text(operation, " (", layers, "): ", kernel, "; ", reason, fast ? "" : " [slow]");
}

namespace {

// "layers 0 to 2, 4", "layer 3": those that `belongs` picks; empty if none.
template <typename Predicate>
std::string layers_where(const ModelSpec& spec, const Predicate& belongs) {
  std::string names;
  int64_t count = 0;
  for (int64_t first = 0; first < spec.num_layers; ++first) {
    if (!belongs(spec.layer_kind(first))) continue;
    int64_t last = first;
    while (last + 1 < spec.num_layers && belongs(spec.layer_kind(last + 1))) ++last;
    names += text(names.empty() ? "" : ", ", first);
    if (last > first) names += text(" to ", last);
    count += last - first + 1;
    first = last;
  }
  return count == 0 ? "" : text(count == 1 ? "layer " : "layers ", names);
}

std::string layers_with(const ModelSpec& spec, MixKind mix) {
  return layers_where(spec, [mix](const LayerKind& kind) { return kind.mix == mix; });
}

// Of mixtures of experts on a GPU: what libtorch's grouped product takes.
std::string expert_reason(const ModelSpec& spec, at::ScalarType type, bool on_cpu) {
  constexpr int64_t kGroupedMultiple = 8;
  const bool grouped = !on_cpu && type == at::kBFloat16 &&
                       spec.hidden_size % kGroupedMultiple == 0 &&
                       spec.experts.width % kGroupedMultiple == 0;
  return text(grouped ? "grouped products of libtorch" : "a product for each expert",
              ", tokens exchanged in bounded chunks");
}

// The three mixes of a hybrid that are no core attention, each with layers of its kind only.
std::vector<KernelUse> mix_uses(const ModelSpec& spec, at::ScalarType type, at::Device device,
                                const std::string& own) {
  std::vector<KernelUse> uses;
  if (const std::string layers = layers_with(spec, MixKind::kLinearAttention); !layers.empty()) {
    const bool fast = kda_is_fast(linear_attention_shape(spec), type, device);
    uses.push_back({"linear attention", layers, own,
                    text("chunks of 64 tokens, states passed on as affine maps",
                         fast ? "" : "; in bfloat16 products would run on tensor cores"),
                    fast});
  }
  const std::string sparse = layers_with(spec, MixKind::kSparseAttention);
  if (sparse.empty()) return uses;
  const bool scoring = scoring_is_fast(index_shape(spec), type, device);
  uses.push_back({"index scoring", sparse, own,
                  text("running top-k in a bounded buffer",
                       scoring ? "" : "; 32 heads of 128 in bfloat16 would run on tensor cores"),
                  scoring});
  const SparseAttentionShape shape = sparse_attention_shape(spec);
  const int64_t pools = spec.index.selected_pools();
  const bool attention = selected_attention_is_fast(shape, pools, type, device);
  uses.push_back({"sparse attention", sparse, own,
                  attention ? "on latents, rows read where they lie"
                            : "rows gathered for products of cuBLAS; 64 heads on latents of 512 in "
                              "bfloat16 run as one kernel on Hopper",
                  attention});
  return uses;
}

// What a hybrid has besides core attention.
std::vector<KernelUse> hybrid_uses(const ModelSpec& spec, at::ScalarType type, at::Device device,
                                   const std::string& own) {
  std::vector<KernelUse> uses = mix_uses(spec, type, device, own);
  const auto add = [&](const char* operation, const std::string& layers,
                       const std::string& reason) {
    if (!layers.empty()) uses.push_back({operation, layers, own, reason});
  };
  const std::string with_experts =
      layers_where(spec, [](const LayerKind& kind) { return kind.has_experts; });
  add("router", with_experts,
      text("logits, scores and weights in ", c10::toString(accumulate_type(type)),
           ", of equal scores the lower expert"));
  add("experts", with_experts, expert_reason(spec, type, device.is_cpu()));
  if (spec.hyper.streams > 1) {
    add("residual streams", text("layers 0 to ", spec.num_layers - 1),
        text("one pass each way, maps in ", c10::toString(accumulate_type(type))));
  }
  return uses;
}

}  // namespace

std::vector<KernelUse> kernel_audit(const ModelSpec& spec, const at::TensorOptions& tensors) {
  const at::ScalarType type = at::typeMetaToScalarType(tensors.dtype());
  const bool on_cpu = tensors.device().is_cpu();
  const std::string all = text("layers 0 to ", spec.num_layers - 1);
  const std::string own =
      text(on_cpu ? "own CPU kernels, " : "own CUDA kernels, ", c10::toString(type), ", sums in ",
           c10::toString(accumulate_type(type)));
  std::vector<KernelUse> uses = hybrid_uses(spec, type, tensors.device(), own);
  if (const std::string layers = layers_with(spec, MixKind::kAttention); !layers.empty()) {
    if (!on_cpu) check_library_attention();
    const AttentionKernelChoice attention = attention_kernel_for({.heads = spec.num_query_heads,
                                                                  .key_heads = spec.num_kv_heads,
                                                                  .head_width = spec.head_dim},
                                                                 type, tensors.device());
    uses.push_back({"attention", layers, attention.name, attention.reason, attention.fast});
  }
  uses.push_back({"products", text(all, " and head"),
                  on_cpu ? "libtorch" : "cuBLAS through libtorch",
                  text("weight gradients add up in ", c10::toString(accumulate_type(type)))});
  uses.push_back({"norms, rope, SwiGLU", all, own, "one pass each way"});
  uses.push_back({"embedding, loss, AdamW", "whole model", own, "sums in a fixed order"});
  return uses;
}

void require_fast(const std::vector<KernelUse>& uses, const std::vector<std::string>& allow_slow) {
  for (const KernelUse& use : uses) {
    const bool allowed =
        std::find(allow_slow.begin(), allow_slow.end(), use.operation) != allow_slow.end();
    if (use.fast || allowed) continue;
    throw UserError(text("no fast kernel for ", use.operation, " of ", use.layers, ": ", use.reason,
                         ". Mend that (model.dtype = \"bfloat16\" on a GPU, or layout.device = "
                         "\"cpu\"), or accept the ",
                         use.kernel, " with layout.allow_slow = [\"", use.operation, "\"]"));
  }
}

}  // namespace longspan
