// Copies and additions of many pieces of memory in few launches: how rows are gathered into
// messages and launch inputs, and scattered back.
//
// Why not a copy for each piece: a message of a plan may hold a hundred short runs of rows, and a
// launch takes as long as copying 10 KB. The list of pieces travels inside the launch itself.
//
//   cuda::copy_pieces(pieces, stream);                       // target = source, bytes
//   cuda::add_pieces<Bf16>(pieces, stream);                  // target += source, elements
//   cuda::copy_head_rows(pieces, heads, stream);             // LSE, head by head
//
// Pieces of one call must not overlap in their targets.
#pragma once

#include <span>

#include "kernels/cuda/cuda_types.h"

namespace longspan::cuda {

struct CopyPiece {
  const void* source = nullptr;  // null: zeros
  void* target = nullptr;
  int64_t bytes = 0;
};

template <typename T>
struct AddPiece {
  const T* source = nullptr;
  Accumulate<T>* target = nullptr;
  int64_t elements = 0;
};

// Rows of one value for each head, turned: target[head * head_stride + row] = source[row * heads +
// head].
struct HeadRowsPiece {
  const float* source = nullptr;  // null: +infinity, the LSE of rows that count for nothing
  float* target = nullptr;
  int64_t rows = 0;
  int64_t head_stride = 0;
};

void copy_pieces(std::span<const CopyPiece> pieces, Stream stream);

void copy_head_rows(std::span<const HeadRowsPiece> pieces, int64_t heads, Stream stream);

template <typename T>
void add_pieces(std::span<const AddPiece<T>> pieces, Stream stream);

// sum = parts[0] + parts[1] + ..., from the left: a reduction over ranks in their order. At
// most kMaxSummed parts; `sum` may be one of them.
inline constexpr int64_t kMaxSummed = 64;
template <typename Real>
void sum_in_order(std::span<const Real* const> parts, int64_t elements, Real* sum, Stream stream);

}  // namespace longspan::cuda
