// Core attention of the slices of one launch, on the rows of stores.
//
//   RowStore queries;  queries.add(line, {q_THK, o_THK, lse_TH});
//   RowStore keys;     keys.add(line, {k_NGK, v_NGK});
//   attention_forward(shape, slices, queries, keys);
//
// float32 and float64 on CPU, any head width, G dividing H; on a GPU what attention_kernel_for
// says. Results there have the accumulation type (float32 for bfloat16). Forward merges into o and
// lse, backward adds to d_q, d_k, d_v (kernels/cpu/blocked_attention.h says what they must hold
// before). q, k, v and d_o may be strided between rows; everything else is contiguous. An
// InternalError names a tensor that is otherwise. Runs on the calling thread and its torch threads;
// the result does not depend on their number.
#pragma once

#include <string>
#include <vector>

#include "attention/row_store.h"
#include "kernels/attention_shape.h"
#include "kernels/cpu/blocked_attention.h"

namespace longspan {

// Which kernel runs such heads, and why that one: what the audit at the start of a run prints is
// what the launches use. UserError if there is none.
struct AttentionKernelChoice {
  std::string name;
  bool fast = true;
  std::string reason;
};
AttentionKernelChoice attention_kernel_for(const AttentionShape& shape, at::ScalarType type,
                                           at::Device device);

// Libraries of a GPU plan each shape that they meet, in tens of milliseconds, and each thread for
// itself. This makes the calling thread's plans before the first step, by running each shape once:
// both directions, for documents of up to `rows_max` rows, cut (`split`) or whole. Gives the number
// of shapes: 0 on CPU and where nothing is planned.
int64_t prepare_attention(const AttentionShape& shape, at::ScalarType type, at::Device device,
                          int64_t rows_max, bool split);

// Whether backward computes the row sums of dO and O itself: the fast kernels of a GPU.
bool backward_reads_output(const AttentionShape& shape, at::ScalarType type, at::Device device);

// Sources of `queries`: {q, o, lse}; of `keys`: {k, v}. On a GPU rows of q, k, v, d_o and o around
// those of the slices are read, too: they may hold any numbers, but no NaN and no infinity.
void attention_forward(const AttentionShape& shape, const std::vector<AttentionSlice>& slices,
                       const RowStore& queries, const RowStore& keys);

// Sources of `queries`: {q, d_o, lse, delta, d_q}, and o behind them if backward_reads_output():
// then delta is not read. O is wanted for its row sums with dO alone (row_arithmetic.h:
// projected_output). Sources of `keys`: {k, v, d_k, d_v}.
void attention_backward(const AttentionShape& shape, const std::vector<AttentionSlice>& slices,
                        const RowStore& queries, const RowStore& keys);

}  // namespace longspan
