// Private to experts/: rows of tensors picked out and added back (kernels/cpu/expert_rows.h).
//
//   const at::Tensor packed = gathered(x, tokens);    // rows, or single numbers of a vector
//   add_to(packed, tokens, y);                        // y[tokens[r]] += packed[r]
//
// Tensors are contiguous, rows of one of the run's types, sums of its accumulation type; places of
// one call are distinct and within the tensor. gathered and add_to work where the rows are, the
// others on the CPU, where rows are dealt to threads and the bits do not depend on their number.
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
