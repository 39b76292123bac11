// The rows that calls of an attention library read, one tile after the other.
//
// Why: a call wants its rows in one tensor. Mostly they lie so already, as those of a document do,
// and the call gets a view. Then a tile is filled up with the rows that stand around its own: no
// own query sees a key behind it, and queries that are filling have an LSE of +infinity, with
// which they add nothing to a gradient. All other rows are copied, those of many calls in one
// launch, and filled up with zeros.
//
//   CallRows rows(shape);
//   const at::Tensor q = rows.packed(queries, call.queries, 0);    // ... for all calls
//   const at::Tensor lse = rows.head_first(queries, call.queries, 2, /*by_tile=*/true);
//   rows.copy();                                                   // now they hold what they
//   should
//
// Builds with CUDA only; copies are queued on the calling thread's stream.
#pragma once

#include <vector>

#include "attention/row_store.h"
#include "kernels/attention_shape.h"
#include "kernels/cuda/row_pieces.h"
#include "kernels/packed_tiles.h"

namespace longspan {

// Rows of a source, as tensors.
at::Tensor rows_of(const RowStore& store, const PackedPiece& piece, size_t tensor_idx);

// From one contiguous tensor to another of the same type and size.
cuda::CopyPiece copy_piece(const at::Tensor& from, const at::Tensor& to);

class CallRows {
 public:
  explicit CallRows(const AttentionShape& shape) : shape_(shape) {}
  CallRows(const CallRows&) = delete;
  CallRows& operator=(const CallRows&) = delete;

  // [rows, ...], contiguous and aligned to 16 bytes; filling may hold any rows.
  at::Tensor packed(const RowStore& store, const Packing& packing, size_t tensor_idx);
  // One float32 a head: [tiles, H, rows of a tile] of tiles of one size, or [H, rows]. Filling is
  // +infinity.
  at::Tensor head_first(const RowStore& store, const Packing& packing, size_t tensor_idx,
                        bool by_tile);

  // Of the tensors given out that are not views.
  int64_t copied_bytes() const { return copied_bytes_; }
  void copy();

 private:
  void add_head_rows(const RowStore& store, const Packing& packing, size_t tensor_idx,
                     const Range& tile, float* target);

  AttentionShape shape_;
  std::vector<cuda::CopyPiece> copies_;
  std::vector<cuda::HeadRowsPiece> head_copies_;
  std::vector<at::Tensor> sources_;  // made here: they must outlive the copies
  int64_t copied_bytes_ = 0;
};

}  // namespace longspan
