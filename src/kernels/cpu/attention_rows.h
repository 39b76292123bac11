// Row-wise arithmetic around core attention: merging partial results, and backward's row sums.
//
//   merge_attention_rows(shape, rows, o, lse, part_o, part_lse);  // o, lse: both parts together
//   attention_delta(shape, rows, o, d_o, delta);                   // delta = rowsum(dO * O)
//
// The parts of a row come from disjoint sets of keys; a part without keys (o = 0, lse = -infinity)
// changes nothing, and two of them stay one. Rows are contiguous (kernels/attention_shape.h).
// Pure on its outputs; any thread.
#pragma once

#include "kernels/attention_shape.h"

namespace longspan {

template <typename Real>
void merge_attention_rows(const AttentionShape& shape, int64_t rows, Real* o, Real* lse,
                          const Real* part_o, const Real* part_lse);

template <typename Real>
void attention_delta(const AttentionShape& shape, int64_t rows, const Real* o, const Real* d_o,
                     Real* delta);

}  // namespace longspan
