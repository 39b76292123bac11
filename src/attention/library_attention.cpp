#include "attention/library_attention.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/empty.h>

#include <sstream>

#include "base/error.h"

namespace longspan {
namespace {

constexpr int64_t kWidthMax = 256;
constexpr int64_t kWidthStep = 8;

struct KnownSchema {
  const char* name;
  const char* text;
};

constexpr KnownSchema kSchemas[] = {
    {"aten::_flash_attention_forward",
     "aten::_flash_attention_forward(Tensor query, Tensor key, Tensor value, Tensor? cum_seq_q, "
     "Tensor? cum_seq_k, SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, bool "
     "return_debug_mask, *, float? scale=None, SymInt? window_size_left=None, SymInt? "
     "window_size_right=None, Tensor? seqused_k=None, Tensor? alibi_slopes=None) -> (Tensor "
     "output, "
     "Tensor softmax_logsumexp, Tensor rng_state, Tensor unused, Tensor debug_attn_mask)"},
    {"aten::_flash_attention_backward",
     "aten::_flash_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, "
     "Tensor out, Tensor logsumexp, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt "
     "max_k, float dropout_p, bool is_causal, Tensor rng_state, Tensor unused, *, float? "
     "scale=None, SymInt? window_size_left=None, SymInt? window_size_right=None) -> (Tensor, "
     "Tensor, Tensor)"},
    {"aten::_scaled_dot_product_cudnn_attention",
     "aten::_scaled_dot_product_cudnn_attention(Tensor query, Tensor key, Tensor value, Tensor? "
     "attn_bias, bool compute_log_sumexp, float dropout_p=0., bool is_causal=False, bool "
     "return_debug_mask=False, *, float? scale=None) -> (Tensor output, Tensor logsumexp, Tensor "
     "cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, Tensor philox_seed, Tensor "
     "philox_offset, Tensor debug_attn_mask)"},
    {"aten::_scaled_dot_product_cudnn_attention_backward",
     "aten::_scaled_dot_product_cudnn_attention_backward(Tensor grad_out, Tensor query, Tensor "
     "key, Tensor value, Tensor out, Tensor logsumexp, Tensor philox_seed, Tensor philox_offset, "
     "Tensor attn_bias, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, float "
     "dropout_p, bool is_causal, *, float? scale=None) -> (Tensor, Tensor, Tensor)"},
};

}  // namespace

void check_library_attention() {
  for (const KnownSchema& known : kSchemas) {
    const auto found = c10::Dispatcher::singleton().findSchema({known.name, ""});
    std::ostringstream schema;
    if (found) schema << found->schema();
    if (schema.str() == known.text) continue;
    throw UserError(text("libtorch's ", known.name, " is not the one that longspan knows: install ",
                         "the pinned torch (scripts/setup.sh). Found: ",
                         found ? schema.str() : "nothing", "; expected: ", known.text));
  }
}

std::string flash_attention_refusal(const AttentionShape& shape, at::ScalarType type) {
  if (type != at::kBFloat16) {
    return text("FlashAttention-2 runs in bfloat16, not in ", c10::toString(type));
  }
  if (shape.head_width > kWidthMax || shape.head_width % kWidthStep != 0) {
    return text("FlashAttention-2 runs heads of a multiple of ", kWidthStep, " up to ", kWidthMax,
                ", not of ", shape.head_width);
  }
  return "";
}

LibraryOutput flash_forward(const FlashInputs& in) {
  auto [o, lse, random_state, unused, debug_mask] = at::_flash_attention_forward(
      in.q, in.k, in.v, in.query_ends, in.key_ends, in.query_rows_max, in.key_rows_max,
      /*dropout_p=*/0.0, in.causal, /*return_debug_mask=*/false, in.scale);
  return {std::move(o), std::move(lse)};
}

LibraryGradients flash_backward(const FlashInputs& in, const at::Tensor& d_o, const at::Tensor& o,
                                const at::Tensor& lse) {
  // Without dropout the state of its generator is asked for, but not read.
  const at::Tensor random_state = at::empty({2}, in.q.options().dtype(at::kLong));
  auto [d_q, d_k, d_v] = at::_flash_attention_backward(
      d_o, in.q, in.k, in.v, o, lse, in.query_ends, in.key_ends, in.query_rows_max, in.key_rows_max,
      /*dropout_p=*/0.0, in.causal, random_state, random_state, in.scale);
  return {std::move(d_q), std::move(d_k), std::move(d_v)};
}

std::string cudnn_attention_refusal(const AttentionShape& shape, at::ScalarType type,
                                    Direction direction) {
  if (type != at::kBFloat16) return "cuDNN's attention runs in bfloat16";
  if (shape.head_width != 64 && shape.head_width != 128) {
    return "cuDNN's attention is used for heads of 64 and 128";
  }
  if (direction == Direction::kBackward && at::globalContext().deterministicAlgorithms()) {
    return "cuDNN's backward has other bits on repeat, and run.deterministic is on";
  }
  return "";
}

namespace {

// As the operation wants it: heads before rows, in the same memory.
at::Tensor heads_first(const at::Tensor& rows_first) {
  return rows_first.transpose(1, 2);
}

at::Tensor rows_first(const at::Tensor& heads_first) {
  return heads_first.transpose(1, 2).contiguous();
}

}  // namespace

LibraryOutput cudnn_forward(const DenseInputs& in) {
  auto result = at::_scaled_dot_product_cudnn_attention(
      heads_first(in.q), heads_first(in.k), heads_first(in.v), /*attn_bias=*/std::nullopt,
      /*compute_log_sumexp=*/true, /*dropout_p=*/0.0, in.causal,
      /*return_debug_mask=*/false, in.scale);
  return {rows_first(std::get<0>(result)), std::get<1>(result).squeeze(3)};
}

LibraryGradients cudnn_backward(const DenseInputs& in, const at::Tensor& d_o, const at::Tensor& o,
                                const at::Tensor& lse) {
  const at::Tensor random_state = at::empty({}, in.q.options().dtype(at::kLong));
  auto [d_q, d_k, d_v] = at::_scaled_dot_product_cudnn_attention_backward(
      heads_first(d_o), heads_first(in.q), heads_first(in.k), heads_first(in.v), heads_first(o),
      lse.unsqueeze(3), random_state, random_state, /*attn_bias=*/{}, /*cum_seq_q=*/{},
      /*cum_seq_k=*/{}, in.q.size(1), in.k.size(1), /*dropout_p=*/0.0, in.causal, in.scale);
  return {rows_first(d_q), rows_first(d_k), rows_first(d_v)};
}

}  // namespace longspan
