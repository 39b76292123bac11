// Private to kernels/cuda: which key stands in a slot of a query (kernels/cuda/sparse_attention.h).
//
//   const int64_t position = slot_position(rows, row, slot);     // in the document, -1: no key
//
// Slots: pool_tokens for each of the row's pools, then those of the tail, then padding.
#pragma once

#include "kernels/cuda/sparse_attention.h"

namespace longspan::cuda {

__device__ inline int64_t tail_tokens(const SelectedRows& rows, int64_t row) {
  return (rows.positions[row] + int64_t{1}) % rows.shape.pool_tokens;
}

// The position of a slot's key in its document; -1 if the slot has none.
__device__ inline int64_t slot_position(const SelectedRows& rows, int64_t row, int64_t slot) {
  const int64_t entry = slot / rows.shape.pool_tokens;
  const int64_t token = slot % rows.shape.pool_tokens;
  if (entry < rows.pools_per_row) {
    const int32_t pool = rows.pools[row * rows.pools_per_row + entry];
    return pool < 0 ? -1 : pool * rows.shape.pool_tokens + token;
  }
  const int64_t tail = tail_tokens(rows, row);
  if (entry > rows.pools_per_row || token >= tail) return -1;
  return rows.positions[row] + 1 - tail + token;
}

__device__ inline bool slot_has_key(const SelectedRows& rows, int64_t row, int64_t slot) {
  if (slot < rows.num_pools[row] * rows.shape.pool_tokens) return true;
  const int64_t beyond = slot - rows.pools_per_row * rows.shape.pool_tokens;
  return beyond >= 0 && beyond < tail_tokens(rows, row);
}

}  // namespace longspan::cuda
