#include "kernels/cuda/attention_rows.h"

#include <bit>

#include "kernels/cuda/piece_list.cuh"

namespace longspan::cuda {
namespace {

// The row and head of the calling warp, counted together.
__device__ int64_t warp_row() {
  return grid_thread() / kWarp;
}

__device__ int64_t warp_lane() {
  return threadIdx.x % kWarp;
}

// `lanes` threads of a warp, a power of two, have one head of a row; a thread runs kVector
// neighbouring columns at a time.
template <typename O, typename T, int kVector>
__global__ void merge_kernel(PieceList<MergePiece<O, T>> list, int64_t heads, int64_t width,
                             int lanes) {
  using A = Accumulate<T>;
  const int64_t block_rows = kThreads / lanes;
  const BlockPart block = part_of_block(list, block_rows);
  const MergePiece<O, T>& piece = list.pieces[block.piece];
  const int64_t row = block.begin + threadIdx.x / lanes;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const bool exists = row < piece.rows * heads;
  const auto& lse = piece.part_lse;
  const A before = exists ? piece.lse[row] : A{0};
  const A part = exists ? lse.data[row / heads * lse.row_stride + row % heads * lse.head_stride]
                        : static_cast<A>(-INFINITY);
  const bool empty = part == -INFINITY || part == INFINITY;
  const A largest = before > part ? before : part;
  const A merged = largest + log(exp(before - largest) + exp(part - largest));
  const A weight = exp(before - merged);
  const A part_weight = exp(part - merged);
  for (int64_t column = lane * kVector; !empty && column < width; column += lanes * kVector) {
    A values[kVector];
    load<kVector>(piece.part_o + row * width + column, values);
    if (before != -INFINITY) {  // otherwise the part is all there is
      A earlier[kVector];
      load<kVector>(piece.o + row * width + column, earlier);
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] = weight * earlier[i] + part_weight * values[i];
    }
    store<kVector>(piece.o + row * width + column, values);
  }
  __syncwarp();
  if (lane == 0 && !empty) piece.lse[row] = merged;
}

template <typename T, int kVector>
__global__ void delta_kernel(int64_t head_rows, int64_t width, const T* o, const T* d_o,
                             Accumulate<T>* delta) {
  const int64_t row = warp_row();
  if (row >= head_rows) return;
  Accumulate<T> sum = 0;
  for (int64_t column = warp_lane() * kVector; column < width; column += kWarp * kVector) {
    Accumulate<T> values[kVector];
    Accumulate<T> gradients[kVector];
    load<kVector>(o + row * width + column, values);
    load<kVector>(d_o + row * width + column, gradients);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum += values[i] * gradients[i];
  }
  sum = warp_sum(sum);
  if (warp_lane() == 0) delta[row] = sum;
}

template <typename T, int kVector>
__global__ void project_kernel(int64_t head_rows, int64_t width, const T* d_o,
                               const Accumulate<T>* delta, T* o) {
  using A = Accumulate<T>;
  const int64_t row = warp_row();
  if (row >= head_rows) return;
  const T* gradients = d_o + row * width;
  A largest = 0;
  for (int64_t column = warp_lane() * kVector; column < width; column += kWarp * kVector) {
    A values[kVector];
    load<kVector>(gradients + column, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) largest = max(largest, abs(values[i]));
  }
  largest = warp_max(largest);
  // Divided by the largest element, squares neither vanish nor overflow.
  const A inverse = largest > 0 ? A{1} / largest : A{0};
  A squares = 0;
  for (int64_t column = warp_lane() * kVector; column < width; column += kWarp * kVector) {
    A values[kVector];
    load<kVector>(gradients + column, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) squares += values[i] * inverse * (values[i] * inverse);
  }
  squares = warp_sum(squares);
  const A factor = largest > 0 ? delta[row] * inverse / squares : A{0};
  for (int64_t column = warp_lane() * kVector; column < width; column += kWarp * kVector) {
    A values[kVector];
    load<kVector>(gradients + column, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] = values[i] * inverse * factor;
    store<kVector>(o + row * width + column, values);
  }
}

int64_t blocks_of(int64_t head_rows) {
  return divide_up(head_rows, kThreads / kWarp);
}

constexpr int kColumns = 4;  // of a lane at a time, where heads allow it

template <typename... Pointers>
bool is_wide(int64_t width, Pointers... pointers) {
  return width % kColumns == 0 &&
         ((reinterpret_cast<uintptr_t>(pointers) % (kColumns * sizeof(*pointers)) == 0) && ...);
}

}  // namespace

template <typename O, typename T>
void merge_attention_rows(const AttentionShape& shape, std::span<const MergePiece<O, T>> pieces,
                          Stream stream) {
  constexpr int kVector = kWide<T>;
  bool wide = shape.head_width % kVector == 0;
  for (const MergePiece<O, T>& piece : pieces) {
    wide = wide && reinterpret_cast<uintptr_t>(piece.o) % (kVector * sizeof(O)) == 0 &&
           is_aligned(piece.part_o);
  }
  const int64_t vectors = wide ? shape.head_width / kVector : shape.head_width;
  const auto lanes =
      static_cast<int>(std::min<uint64_t>(kWarp, std::bit_floor(static_cast<uint64_t>(vectors))));
  launch_pieces(
      "merge of attention rows", wide ? merge_kernel<O, T, kVector> : merge_kernel<O, T, 1>, pieces,
      [&](const MergePiece<O, T>& piece) { return piece.rows * shape.heads; }, kThreads / lanes,
      stream, shape.heads, shape.head_width, lanes);
}

template <typename T>
void attention_delta(const AttentionShape& shape, int64_t rows, const T* o, const T* d_o,
                     Accumulate<T>* delta, Stream stream) {
  const int64_t head_rows = rows * shape.heads;
  const bool wide = is_wide(shape.head_width, o, d_o);
  launch("attention delta", wide ? delta_kernel<T, kColumns> : delta_kernel<T, 1>,
         blocks_of(head_rows), kThreads, stream, head_rows, shape.head_width, o, d_o, delta);
}

template <typename T>
void attention_projected_output(const AttentionShape& shape, int64_t rows, const T* d_o,
                                const Accumulate<T>* delta, T* o, Stream stream) {
  const int64_t head_rows = rows * shape.heads;
  const bool wide = is_wide(shape.head_width, d_o, o);
  launch("projected attention output", wide ? project_kernel<T, kColumns> : project_kernel<T, 1>,
         blocks_of(head_rows), kThreads, stream, head_rows, shape.head_width, d_o, delta, o);
}

#define LONGSPAN_INSTANTIATE_MERGE(O, T)                                                       \
  template void merge_attention_rows(const AttentionShape&, std::span<const MergePiece<O, T>>, \
                                     Stream);
LONGSPAN_INSTANTIATE_MERGE(Bf16, Bf16)
LONGSPAN_INSTANTIATE_MERGE(float, Bf16)
LONGSPAN_INSTANTIATE_MERGE(float, float)
LONGSPAN_INSTANTIATE_MERGE(double, double)
#undef LONGSPAN_INSTANTIATE_MERGE

#define LONGSPAN_INSTANTIATE(T)                                                      \
  template void attention_delta(const AttentionShape&, int64_t, const T*, const T*,  \
                                Accumulate<T>*, Stream);                             \
  template void attention_projected_output(const AttentionShape&, int64_t, const T*, \
                                           const Accumulate<T>*, T*, Stream);
LONGSPAN_INSTANTIATE(Bf16)
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan::cuda
