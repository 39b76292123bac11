// Sparse attention in bfloat16 on Hopper's tensor cores (sm_90a), without gathering rows in memory.
//
//   if (hopper_sparse_attention_runs(shape, pools_per_row))
//     hopper_selected_attention(rows, q, table, o, lse, stream);
//
// A block of threads has one query: its 64 heads stay in shared memory, tiles of selected rows
// follow each other through it, and serve as keys and as values. 64 heads and latents of 512 only;
// everything else runs the products of a library over gathered rows
// (kernels/cuda/sparse_attention.h). Keys are taken in the order of their slots, so the bits of a
// query depend on nothing but itself.
#pragma once

#include "kernels/cuda/sparse_attention.h"

namespace longspan::cuda {

// Whether the current GPU and the shape are right: at most 2,072 slots for each query.
bool hopper_sparse_attention_runs(const SparseAttentionShape& shape, int64_t pools_per_row);

// q and o [count, 64, 512], LSE [count, 64].
void hopper_selected_attention(const SelectedRows& rows, const Bf16* q, void* const* table, Bf16* o,
                               float* lse, Stream stream);

// Of queries [count, 64, 512], their outputs' gradients, LSE and rowsum(dO * O) [count, 64].
struct SelectedGradient {
  const Bf16* q = nullptr;
  const Bf16* d_o = nullptr;
  const float* lse = nullptr;
  const float* delta = nullptr;
};

// dQ, and what selected_score_gradient() gives: gradients of scores, then weights [count, 128, L].
void hopper_selected_gradient(const SelectedRows& rows, const SelectedGradient& given,
                              void* const* table, Bf16* d_q, Bf16* gradients, Stream stream);

}  // namespace longspan::cuda
