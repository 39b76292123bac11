// Attention over selected pools and tails on a GPU: what stands around its matrix products.
//
// The products of a block of queries with the rows that each of them selected are batched products
// of a library, over rows gathered side by side; here are the gathering, the softmax, the gradient
// of the scores, and the sums of what queries give to the gradients of latents
// (sparse_attention/gpu_selected_attention.cpp puts them together; the CPU's twin of the whole is
// kernels/cpu/sparse_attention.h).
//
//   cuda::row_table(segments, count, begin, lines, row_bytes, table, stream);  // line -> its row
//   cuda::gather_rows<Bf16>(rows_of_block, table, gathered, stream);           // [n, L, R]
//   cuda::selected_softmax<Bf16>(rows_of_block, scores, scale, weights, lse, stream);
//
// A query has L = padded_keys slots: pool_tokens for each of its pools, then the tail's, then
// padding. Slots without a key hold zeros: zero rows, zero weights. Sums over queries go in their
// order, whatever the block: a latent's sum is read, added to query by query, and written back.
// A key whose row is not in the table stops the process: an exchange left it out.
#pragma once

#include "kernels/cuda/cuda_types.h"
#include "kernels/sparse_attention_shape.h"

namespace longspan::cuda {

// Rows of the token line that lie one after the other.
struct LineSegment {
  int64_t begin = 0;  // line positions
  int64_t end = 0;
  void* first_row = nullptr;
};

// table[i] = the row of line position begin + i, null where no segment has it. Segments ascending,
// on the device.
void row_table(const LineSegment* segments, int64_t count, int64_t begin, int64_t lines,
               int64_t row_bytes, void** table, Stream stream);

// A block of queries, wherever their documents begin.
struct SelectedRows {
  SparseAttentionShape shape;
  int64_t count = 0;
  const int32_t* pools = nullptr;      // [count, pools_per_row]
  const int32_t* positions = nullptr;  // [count], in the document
  const int64_t* bases = nullptr;      // [count], of position 0 in the row table
  const int32_t* num_pools = nullptr;  // [count], of those that are not -1
  int64_t pools_per_row = 0;
  int64_t padded_keys = 0;  // at least (pools_per_row + 1) * pool_tokens

  int64_t entries_per_row() const { return pools_per_row + 1; }
};

// num_pools[row] = pools of the row before the first -1.
void count_pools(const int32_t* pools, int64_t rows, int64_t pools_per_row, int32_t* num_pools,
                 Stream stream);

// gathered [count, L, R].
template <typename T>
void gather_rows(const SelectedRows& rows, void* const* table, T* gathered, Stream stream);

// scores [count, H, L] to weights of the softmax over the keys of each row, and its LSE [count, H].
template <typename T>
void selected_softmax(const SelectedRows& rows, const Accumulate<T>* scores, T* weights,
                      Accumulate<T>* lse, Stream stream);

// Products [count, 2 H, L]: of q with the keys, then of dO with them. To the gradient of the scores
// [count, H, L], then the weights of the softmax, in one tensor of the same shape.
template <typename T>
void selected_score_gradient(const SelectedRows& rows, const Accumulate<T>* products,
                             const Accumulate<T>* lse, const Accumulate<T>* delta, T* gradients,
                             Stream stream);

// keys[row * entries_per_row + i] = place in the row table of the first token of the row's i-th
// pool, the tail's behind the pools'; kNoEntry where there is none.
inline constexpr int32_t kNoEntry = 0x7fffffff;
void entry_keys(const SelectedRows& rows, int32_t* keys, Stream stream);

// Adds contributions [count, L, R] to the sums in `table`. `keys` sorted, `order` the entries they
// come from; equal keys in the order of their rows.
template <typename T>
void add_to_latents(const SelectedRows& rows, const int32_t* keys, const int64_t* order,
                    const T* contributions, void* const* table, Stream stream);

}  // namespace longspan::cuda
