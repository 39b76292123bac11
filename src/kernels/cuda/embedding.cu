#include "kernels/cuda/embedding.h"

#include "kernels/cuda/launch.cuh"

namespace longspan::cuda {
namespace {

template <typename T, int kVector>
__global__ void gather_kernel(const T* table, const int32_t* tokens, int64_t vectors,
                              int64_t row_vectors, T* x) {
  using Vector = Packed<kVector, T>;
  const int64_t at = grid_thread();
  if (at >= vectors) return;
  const int64_t row = at / row_vectors;
  const int64_t column = at % row_vectors;
  reinterpret_cast<Vector*>(x)[at] =
      reinterpret_cast<const Vector*>(table)[tokens[row] * row_vectors + column];
}

// One column of one piece for each thread.
template <typename T>
__global__ void piece_kernel(const T* dx, const int32_t* order, const EmbeddingPieces::Piece* list,
                             int64_t column_blocks, int64_t width, Accumulate<T>* partials,
                             Accumulate<T>* table_gradient) {
  const EmbeddingPieces::Piece piece = list[blockIdx.x / column_blocks];
  const int64_t column = blockIdx.x % column_blocks * kThreads + threadIdx.x;
  if (column >= width) return;
  Accumulate<T> sum = 0;
#pragma unroll 4
  for (int32_t at = piece.begin; at < piece.end; ++at) {
    sum += widen(dx[order[at] * width + column]);
  }
  if (piece.partial >= 0) {
    partials[piece.partial * width + column] = sum;
  } else {
    table_gradient[piece.token * width + column] += sum;
  }
}

template <typename A>
__global__ void sum_kernel(const A* partials, const EmbeddingPieces::Sum* sums,
                           int64_t column_blocks, int64_t width, A* table_gradient) {
  const EmbeddingPieces::Sum sum = sums[blockIdx.x / column_blocks];
  const int64_t column = blockIdx.x % column_blocks * kThreads + threadIdx.x;
  if (column >= width) return;
  A total = 0;
  for (int32_t at = sum.partial_begin; at < sum.partial_end; ++at) {
    total += partials[at * width + column];
  }
  table_gradient[sum.token * width + column] += total;
}

}  // namespace

template <typename T>
void embedding_gather(const T* table, const int32_t* tokens, int64_t rows, int64_t width, T* x,
                      Stream stream) {
  const bool wide = width % kWide<T> == 0 && is_aligned(table) && is_aligned(x);
  const int64_t row_vectors = wide ? width / kWide<T> : width;
  launch("embedding gather", wide ? gather_kernel<T, kWide<T>> : gather_kernel<T, 1>,
         divide_up(rows * row_vectors, kThreads), kThreads, stream, table, tokens,
         rows * row_vectors, row_vectors, x);
}

template <typename T>
void embedding_scatter_add(const T* dx, const DevicePieces& pieces, int64_t width,
                           Accumulate<T>* partials, Accumulate<T>* table_gradient, Stream stream) {
  const int64_t column_blocks = divide_up(width, kThreads);
  launch("embedding gradient", piece_kernel<T>, pieces.list_size * column_blocks, kThreads, stream,
         dx, pieces.order, pieces.list, column_blocks, width, partials, table_gradient);
  launch("embedding gradient sums", sum_kernel<Accumulate<T>>, pieces.sums_size * column_blocks,
         kThreads, stream, partials, pieces.sums, column_blocks, width, table_gradient);
}

#define LONGSPAN_INSTANTIATE(T)                                                               \
  template void embedding_gather(const T*, const int32_t*, int64_t, int64_t, T*, Stream);     \
  template void embedding_scatter_add(const T*, const DevicePieces&, int64_t, Accumulate<T>*, \
                                      Accumulate<T>*, Stream);
LONGSPAN_INSTANTIATE(Bf16)
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan::cuda
