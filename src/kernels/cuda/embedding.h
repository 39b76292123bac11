// Token embedding on a GPU: twin of kernels/cpu/embedding.h.
//
//   cuda::embedding_gather(table, tokens, rows, width, x, stream);
//   cuda::embedding_scatter_add(dx, pieces, width, partials, table_gradient, stream);
//
// The gradient is summed as kernels/embedding_pieces.h says, whose arrays the caller has brought to
// the device. `partials` has room for pieces.partials rows.
#pragma once

#include "kernels/cuda/cuda_types.h"
#include "kernels/embedding_pieces.h"

namespace longspan::cuda {

template <typename T>
void embedding_gather(const T* table, const int32_t* tokens, int64_t rows, int64_t width, T* x,
                      Stream stream);

// EmbeddingPieces on the device.
struct DevicePieces {
  const int32_t* order = nullptr;
  const EmbeddingPieces::Piece* list = nullptr;
  int64_t list_size = 0;
  const EmbeddingPieces::Sum* sums = nullptr;
  int64_t sums_size = 0;
};

template <typename T>
void embedding_scatter_add(const T* dx, const DevicePieces& pieces, int64_t width,
                           Accumulate<T>* partials, Accumulate<T>* table_gradient, Stream stream);

}  // namespace longspan::cuda
