// Adds what calls of an attention library give to the results of a launch.
//
// Why: a launch makes hundreds of short runs of rows. They are added in few launches of kernels: a
// run waits in a list until one that writes the same rows comes, so sums have a fixed order and the
// same bits on every repeat. Where every row has one part, results have that part's type and are
// copies.
//
//   PartSums sums(shape);
//   sums.merge(call.queries, out.o, out.lse, /*by_tile=*/true, queries);
//   sums.add(call.keys, gradients.d_k, keys, 2);
//   sums.finish();                                 // before the parts are dropped
//
// Builds with CUDA only; kernels are queued on the calling thread's stream.
#pragma once

#include <map>
#include <vector>

#include "attention/row_store.h"
#include "kernels/attention_shape.h"
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/row_pieces.h"
#include "kernels/packed_tiles.h"

namespace longspan {

class PartSums {
 public:
  explicit PartSums(const AttentionShape& shape) : shape_(shape) {}
  PartSums(const PartSums&) = delete;
  PartSums& operator=(const PartSums&) = delete;

  // `o`: packed rows in bfloat16; `lse`: [tiles, H, rows of a tile], or [H, rows]. Merged into
  // tensors 1 and 2 of the queries' sources.
  void merge(const Packing& packing, const at::Tensor& o, const at::Tensor& lse, bool by_tile,
             const RowStore& queries);
  // Packed rows in bfloat16, added to that tensor of the store's sources.
  void add(const Packing& packing, const at::Tensor& rows, const RowStore& store,
           size_t tensor_idx);
  void finish();

 private:
  void merge_tile(const Packing& packing, const Range& tile, const cuda::Bf16* o, const float* lse,
                  const RowStore& queries);
  void claim(const at::Tensor& rows);

  AttentionShape shape_;
  std::map<uintptr_t, uintptr_t> claimed_;  // addresses that the lists write: end by begin
  std::vector<cuda::MergePiece<float, cuda::Bf16>> merges_;
  std::vector<cuda::MergePiece<cuda::Bf16, cuda::Bf16>> single_merges_;
  std::vector<cuda::AddPiece<cuda::Bf16>> additions_;
  std::vector<cuda::CopyPiece> copies_;
};

}  // namespace longspan
