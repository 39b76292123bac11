// Private to sparse_attention/: what pool_ranking.h, latent_exchange.h and selected_attention.h do
// on a GPU, on the kernels of kernels/cuda and batched products of libtorch.
//
// Positions of rows, and where rows lie, are uploaded; what was selected stays on the device. One
// read-back is declared: gpu_selected_flags(), for ranks that fetch latents from others.
// In builds without CUDA nothing here is called, nor defined. Thread contract: the rank's thread.
#pragma once

#include "attention/row_store.h"
#include "sparse_attention/pool_axis.h"
#include "sparse_attention/pool_ranking.h"
#include "sparse_attention/selected_attention.h"

namespace longspan {

std::unique_ptr<PoolRanking> gpu_pool_ranking(const IndexShape& shape,
                                              const at::TensorOptions& options, int64_t work_bytes);

// pool_ranking.h and selected_attention.h say what they mean.
bool gpu_scoring_is_fast(const IndexShape& shape, at::ScalarType type);
bool gpu_selected_attention_is_fast(const SparseAttentionShape& shape, int64_t top_pools,
                                    at::ScalarType type);

at::Tensor gpu_selected_pools(const IndexShape& shape, const TokenLayout& layout,
                              const Range& piece, const at::Tensor& lists_TB, int64_t width,
                              at::Device device);

// Keys and gates [pools * pool_tokens, D] to pooled keys [pools, D].
void gpu_pool_keys(const at::Tensor& keys, const at::Tensor& gates, int64_t pool_tokens,
                   const at::Tensor& pooled);

// On the host, by pool of the axis from `first_pool` on: whether a query of the piece selected it.
at::Tensor gpu_selected_flags(const TokenLayout& layout, const PoolAxis& axis, const Range& piece,
                              const at::Tensor& pools_TB, const Range& pools);

SelectedOutput gpu_selected_attention(const SparseAttentionShape& shape, const TokenLayout& layout,
                                      const Range& piece, const at::Tensor& q_THR,
                                      const at::Tensor& pools_TB, const RowStore& latents);

at::Tensor gpu_selected_attention_backward(const SparseAttentionShape& shape,
                                           const TokenLayout& layout, const Range& piece,
                                           const SelectedGradientInputs& inputs,
                                           const RowStore& latents, const RowStore& sums);

}  // namespace longspan
