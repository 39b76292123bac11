// Core attention of the slices of one launch on a GPU: attention_kernel.h there.
//
// Slices become bottom-right tiles; the rows of tiles are packed one after the other (where they
// already lie so, as those of whole documents do, nothing is copied: call_rows.h). Long squares and
// rectangles go to cuDNN, where bits need not repeat (kernels/packed_tiles.h); all other causal
// tiles and all full ones are the sequences of one call of FlashAttention-2 each. Results are
// merged into those of the launch in a fixed order. Shapes and types that it does not run go to the
// plain kernel, slice by slice. In builds without CUDA nothing here is called, nor defined.
#pragma once

#include <vector>

#include "attention/row_store.h"
#include "kernels/attention_shape.h"
#include "kernels/cpu/blocked_attention.h"

namespace longspan {

void gpu_attention_forward(const AttentionShape& shape, const std::vector<AttentionSlice>& slices,
                           const RowStore& queries, const RowStore& keys);

void gpu_attention_backward(const AttentionShape& shape, const std::vector<AttentionSlice>& slices,
                            const RowStore& queries, const RowStore& keys);

// attention_kernel.h: prepare_attention.
int64_t prepare_gpu_attention(const AttentionShape& shape, at::ScalarType type, at::Device device,
                              int64_t rows_max, bool split);

// Row-wise: kernels/cuda/attention_rows.h on tensors.
void gpu_merge_rows(const AttentionShape& shape, const at::Tensor& o, const at::Tensor& lse,
                    const at::Tensor& part_o, const at::Tensor& part_lse);
void gpu_delta(const AttentionShape& shape, const at::Tensor& o, const at::Tensor& d_o,
               const at::Tensor& delta);
// Rows of O made from dO and delta alone, as cuda::attention_projected_output says.
at::Tensor gpu_projected_output(const AttentionShape& shape, const at::Tensor& d_o,
                                const at::Tensor& delta);
// Copies between contiguous tensors of one type, in one launch.
void gpu_copy(const std::vector<std::pair<at::Tensor, at::Tensor>>& from_to);

}  // namespace longspan
