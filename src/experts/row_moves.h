// Private to experts/: the kernels of kernels/cpu/expert_rows.h on tensors.
//
//   const at::Tensor packed = gathered(x, tokens);    // rows, or single numbers of a vector
//   add_to(packed, tokens, y);                        // y[tokens[r]] += packed[r]
//
// Tensors are contiguous, float32 or float64; places of one call are distinct and within the
// tensor. Rows are dealt to threads; the bits do not depend on their number.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace longspan {

at::Tensor gathered(const at::Tensor& source, const std::vector<int64_t>& places);
void add_to(const at::Tensor& packed, const std::vector<int64_t>& places, const at::Tensor& sum);
// sum[places[r]] += weights[r] packed[r].
void add_weighted(const at::Tensor& packed, const std::vector<int64_t>& places,
                  const at::Tensor& weights, const at::Tensor& sum);
// rows[r] *= weights[r].
void scale_by(const at::Tensor& weights, const at::Tensor& rows);
// dots[places[r]] = <a[r], b[r]>.
void place_dots(const at::Tensor& a, const at::Tensor& b, const std::vector<int64_t>& places,
                const at::Tensor& dots);

}  // namespace longspan
