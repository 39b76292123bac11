#include "train/kernel_audit.h"

#include <algorithm>
#include <cmath>

#include "attention/attention_kernel.h"
#include "attention/library_attention.h"
#include "base/error.h"
#include "device/device.h"

namespace longspan {

std::string KernelUse::line() const {
  return text(operation, " (", layers, "): ", kernel, "; ", reason, fast ? "" : " [slow]");
}

std::vector<KernelUse> kernel_audit(const ModelSpec& spec, const at::TensorOptions& tensors) {
  const at::ScalarType type = at::typeMetaToScalarType(tensors.dtype());
  const bool on_cpu = tensors.device().is_cpu();
  const std::string all = text("layers 0 to ", spec.num_layers - 1);
  if (!on_cpu) check_library_attention();
  const AttentionKernelChoice attention = attention_kernel_for(
      {.heads = spec.num_query_heads, .key_heads = spec.num_kv_heads, .head_width = spec.head_dim},
      type, tensors.device());
  const std::string own =
      text(on_cpu ? "own CPU kernels, " : "own CUDA kernels, ", c10::toString(type), ", sums in ",
           c10::toString(accumulate_type(type)));
  return {{"attention", all, attention.name, attention.reason, attention.fast},
          {"products", text(all, " and head"), on_cpu ? "libtorch" : "cuBLAS through libtorch",
           text("weight gradients add up in ", c10::toString(accumulate_type(type)))},
          {"norms, rope, SwiGLU", all, own, "one pass each way"},
          {"embedding, loss, AdamW", "whole model", own, "sums in a fixed order"}};
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
