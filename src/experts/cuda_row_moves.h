// Private to experts/: row_moves.h on a GPU, on the kernels of kernels/cuda/expert_rows.h.
//
// Shapes are checked by the callers. Places come from the host and are brought to the device; work
// is queued on the calling thread's stream, and nothing waits.
// In builds without CUDA nothing here is called, nor defined.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace longspan {

at::Tensor cuda_gathered(const at::Tensor& source, const std::vector<int64_t>& places);
void cuda_add_to(const at::Tensor& packed, const std::vector<int64_t>& places,
                 const at::Tensor& sum);

}  // namespace longspan
