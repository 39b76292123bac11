// Row-wise arithmetic around core attention on tensors, wherever they lie: merging partial results,
// and backward's row sums.
//
//   merge_rows(shape, o, lse, part_o, part_lse);        // o, lse: both parts together
//   at::Tensor delta_TH = row_delta(shape, o, d_o);       // rowsum(dO * O)
//
// Results have the accumulation type; parts and inputs may have the compute type
// (kernels/cpu/attention_rows.h, kernels/cuda/attention_rows.h). One rank's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/attention_shape.h"

namespace longspan {

void merge_rows(const AttentionShape& shape, const at::Tensor& o_THK, const at::Tensor& lse_TH,
                const at::Tensor& part_o_THK, const at::Tensor& part_lse_TH);

at::Tensor row_delta(const AttentionShape& shape, const at::Tensor& o_THK,
                     const at::Tensor& d_o_THK);

// Rows whose sums with dO are delta, from those two: for kernels that want O for these sums, where
// O itself is on another rank. GPUs alone; InternalError elsewhere.
at::Tensor projected_output(const AttentionShape& shape, const at::Tensor& d_o_THK,
                            const at::Tensor& delta_TH);

}  // namespace longspan
