// Attention of a piece's queries over their selected pools and tails, on latents in stores.
//
//   SelectedOutput out = selected_attention(shape, layout, piece, q_THR, pools_TB, latents);
//   at::Tensor dq = selected_attention_backward(shape, layout, piece, inputs, latents, sums);
//
// `latents` and `sums` hold {rows [.., R]} by line, at least those that the queries look at, so
// whole documents or selected rows alike; `sums` are added to, in the accumulation type. Rows of a
// source are contiguous. Pools of a query: of its document, ascending, then -1.
// Backward goes over blocks of queries whose weights take at most kWeightBytes. Bits depend neither
// on the number of threads nor on how sources hold the rows. On a GPU blocks of queries take at
// most kGatheredBytes with all that belongs to them. At the released widths in bfloat16 on Hopper
// one kernel reads rows where they lie; else they are gathered for the products of a library. The
// same call gives the same bits, but which queries share a block may matter. LSE in the
// accumulation type. Thread contract: the rank's thread and its torch threads.
#pragma once

#include <ATen/core/Tensor.h>

#include "attention/row_store.h"
#include "kernels/sparse_attention_shape.h"
#include "layout/token_layout.h"

namespace longspan {

inline constexpr int64_t kWeightBytes = int64_t{64} << 20;
inline constexpr int64_t kGatheredBytes = int64_t{512} << 20;

// Whether attention runs on the kernels made for speed: on a GPU from Hopper on, in bfloat16 with
// 64 heads on latents of 512, without gathering rows in memory first.
bool selected_attention_is_fast(const SparseAttentionShape& shape, int64_t top_pools,
                                at::ScalarType type, at::Device device);

struct SelectedOutput {
  at::Tensor o_THR;
  at::Tensor lse_TH;
};

SelectedOutput selected_attention(const SparseAttentionShape& shape, const TokenLayout& layout,
                                  const Range& piece, const at::Tensor& q_THR,
                                  const at::Tensor& pools_TB, const RowStore& latents);

struct SelectedGradientInputs {
  at::Tensor q_THR;
  at::Tensor pools_TB;
  at::Tensor o_THR;
  at::Tensor lse_TH;
  at::Tensor d_o_THR;
};

// The gradient of the queries; those of the latents are added to `sums`.
at::Tensor selected_attention_backward(const SparseAttentionShape& shape, const TokenLayout& layout,
                                       const Range& piece, const SelectedGradientInputs& inputs,
                                       const RowStore& latents, const RowStore& sums);

}  // namespace longspan
