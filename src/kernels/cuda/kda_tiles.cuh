// Private to the KDA kernels of kernels/cuda: one chunk of one head in shared memory.
//
//   const ChunkPlace at = chunk_place(in.places, blockIdx.x);      // a block for each chunk and
//   head load_rows<T, W>(in.qkv + at.rows(...), ..., at.chunk.rows, tile); BlockDecay<T, W>
//   decay(space);  decay.fill(g, ...);            // then sums of g between rows
//
// Legend: C rows of a chunk, in blocks of 16; W row width. Sums of g start at block borders (see
// kernels/cpu/kda_chunk.h for why).
#pragma once

#include "kernels/cuda/block_matrix.cuh"
#include "kernels/cuda/kda.h"

namespace longspan::cuda {

constexpr int kBlockRows = 16;

template <typename T>
__device__ inline Accumulate<T> exp_of(Accumulate<T> exponent) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return __expf(exponent);
  } else {
    return exp(exponent);
  }
}

// The block's dynamic shared memory, dealt out in pieces of 16-byte alignment.
class SharedSpace {
 public:
  __device__ SharedSpace() {
    extern __shared__ __align__(16) unsigned char dynamic_shared_memory[];
    next_ = dynamic_shared_memory;
  }
  __device__ explicit SharedSpace(unsigned char* begin) : next_(begin) {}
  template <typename Value>
  __device__ Value* take(int count) {
    auto* values = reinterpret_cast<Value*>(next_);
    next_ += (static_cast<size_t>(count) * sizeof(Value) + 15) / 16 * 16;
    return values;
  }

 private:
  unsigned char* next_;
};

template <typename Value>
constexpr int64_t shared_bytes(int count) {
  return (static_cast<int64_t>(count) * static_cast<int64_t>(sizeof(Value)) + 15) / 16 * 16;
}

// Where a chunk's head stands in the buffers.
struct ChunkPlace {
  KdaChunk chunk;
  int64_t index = 0;
  int64_t head = 0;

  // First value in [heads, tokens, width].
  __device__ int64_t by_head(const KdaPlaces& places, int64_t width) const {
    return (head * places.tokens + chunk.first_row) * width;
  }
  // In [tokens, heads, width].
  __device__ int64_t by_token(const KdaPlaces& places, int64_t width) const {
    return (chunk.first_row * places.heads + head) * width;
  }
  // In [chunks, heads, width].
  __device__ int64_t by_chunk(const KdaPlaces& places, int64_t width) const {
    return (index * places.heads + head) * width;
  }
  // In [borders, heads, width]: the border before the chunk, which is not its stretch's first.
  __device__ int64_t by_border(const KdaPlaces& places, int64_t width) const {
    return ((index - chunk.stretch - 1) * places.heads + head) * width;
  }
};

__device__ inline ChunkPlace chunk_place(const KdaPlaces& places, int64_t index, int64_t head) {
  return {places.chunks[index], index, head};
}

// A block for each chunk and head, heads of a chunk side by side.
__device__ inline ChunkPlace chunk_place(const KdaPlaces& places) {
  return chunk_place(places, blockIdx.x / places.heads, blockIdx.x % places.heads);
}

// tile [total, kWidth] = the first `rows` rows of `from`, zeros below. Rows of `from` are aligned
// and `stride` values apart.
template <typename T, int kWidth>
__device__ inline void load_rows(const T* from, int64_t stride, int rows, int total, T* tile) {
  constexpr int kVectors = kWidth / kWide<T>;
  constexpr int kStride = row_stride<T>(kWidth);
  for (int at = static_cast<int>(threadIdx.x); at < total * kVectors; at += kThreads) {
    const int row = at / kVectors;
    const int column = at % kVectors * kWide<T>;
    Packed<kWide<T>, T> values = {};
    if (row < rows) {
      values = *reinterpret_cast<const Packed<kWide<T>, T>*>(from + row * stride + column);
    }
    T* to = tile + row * kStride + column;
    if constexpr (std::is_same_v<T, Bf16>) {
      *reinterpret_cast<Packed<kWide<T>, T>*>(to) = values;
    } else {
#pragma unroll
      for (int i = 0; i < kWide<T>; ++i) to[i] = values.values[i];
    }
  }
}

// tile [total, kWidth] = columns [first_column, first_column + kWidth) of rows of `width` values of
// any type, `stride` apart; zeros below row `rows` and from `width` on.
template <typename T, int kWidth, typename From>
__device__ inline void load_real_rows(const From* from, int64_t stride, int64_t width, int rows,
                                      int total, int first_column, T* tile) {
  constexpr int kStride = row_stride<T>(kWidth);
  for (int at = static_cast<int>(threadIdx.x); at < total * kWidth; at += kThreads) {
    const int row = at / kWidth;
    const int column = first_column + at % kWidth;
    Accumulate<T> value = 0;
    if (row < rows && column < width) value = widen(from[row * stride + column]);
    tile[row * kStride + at % kWidth] = narrow_to<T>(value);
  }
}

// Sums of g over the rows of a chunk, up to kWidth columns. Rows beyond the chunk's end decay
// nothing.
template <typename T, int kWidth>
class BlockDecay {
  using A = Accumulate<T>;
  static constexpr int kRows = kda_chunk_rows<T>();
  static constexpr int kBlocks = kRows / kBlockRows;
  static constexpr int kStride = kWidth + 1;  // lanes read one column of several rows at once

 public:
  static constexpr int64_t kBytes =
      shared_bytes<A>(kRows * kStride) + shared_bytes<A>((kBlocks + 1) * kWidth);

  __device__ explicit BlockDecay(SharedSpace& space)
      : local_(space.take<A>(kRows * kStride)), borders_(space.take<A>((kBlocks + 1) * kWidth)) {}

  // Waits for all threads.
  __device__ void fill(const A* g, int64_t stride, int64_t width, int rows) {
    for (int at = static_cast<int>(threadIdx.x); at < kBlocks * kWidth; at += kThreads) {
      const int first = at / kWidth * kBlockRows;
      const int column = at % kWidth;
      A values[kBlockRows];
#pragma unroll
      for (int i = 0; i < kBlockRows; ++i) {
        const bool real = first + i < rows && column < width;
        values[i] = real ? g[(first + i) * stride + column] : A{0};
      }
      A sum = 0;
#pragma unroll
      for (int i = 0; i < kBlockRows; ++i) {
        sum += values[i];
        local_[(first + i) * kStride + column] = sum;
      }
    }
    __syncthreads();
    for (int column = static_cast<int>(threadIdx.x); column < kWidth; column += kThreads) {
      A sum = 0;
      borders_[column] = 0;
      for (int block = 0; block < kBlocks; ++block) {
        sum += of_block(block, column);
        borders_[(block + 1) * kWidth + column] = sum;
      }
    }
    __syncthreads();
  }

  // Sums of g, of logarithms of decays: from the block's first row to `row`, inclusive.
  __device__ A from_block(int row, int column) const {
    return local_[row * kStride + column];
  }
  // From the chunk's first row.
  __device__ A from_start(int row, int column) const {
    return border(row / kBlockRows, column) + from_block(row, column);
  }
  // After `row`, up to the border before block `block`, which comes later.
  __device__ A to_border(int row, int block, int column) const {
    return from_block_to_border(row / kBlockRows, block, column) - from_block(row, column);
  }
  // From the first row of a block up to the border before a later one.
  __device__ A from_block_to_border(int own, int block, int column) const {
    return (border(block, column) - border(own + 1, column)) + of_block(own, column);
  }
  // From the border before a block up to that before a later one.
  __device__ A between_borders(int block, int later, int column) const {
    return border(later, column) - border(block, column);
  }
  // Of the whole chunk.
  __device__ A whole(int column) const {
    return border(kBlocks, column);
  }

 private:
  __device__ A border(int block, int column) const {
    return borders_[block * kWidth + column];
  }
  __device__ A of_block(int block, int column) const {
    return local_[(block * kBlockRows + kBlockRows - 1) * kStride + column];
  }

  A* local_;
  A* borders_;
};

// Calls function(row, column) for the thread's pairs of neighbouring columns of a block of rows.
template <int kWidth, typename Function>
__device__ inline void for_pairs_of_block(int block, const Function& function) {
  constexpr int kPairs = kWidth / 2;
  const int column = 2 * (static_cast<int>(threadIdx.x) % kPairs);
#pragma unroll
  for (int row = 0; row < kBlockRows; row += kThreads / kPairs) {
    function(block * kBlockRows + row + static_cast<int>(threadIdx.x) / kPairs, column);
  }
}

template <typename T>
__device__ inline void load_pair(const T* from, Accumulate<T> (&values)[2]) {
  if constexpr (std::is_same_v<T, Bf16>) {
    load<2>(from, values);
  } else {
    values[0] = from[0];  // rows in shared memory may begin anywhere
    values[1] = from[1];
  }
}

// A pair of neighbouring values in memory of the run's type.
template <typename T>
__device__ inline void store_pair(T* to, Accumulate<T> first, Accumulate<T> second) {
  Accumulate<T> values[2] = {first, second};
  if constexpr (std::is_same_v<T, Bf16>) {
    store<2>(to, values);
  } else {
    to[0] = values[0];
    to[1] = values[1];
  }
}

// Launches with dynamic shared memory beyond the usual 48 KiB.
template <typename... Parameters, typename... Arguments>
void launch_shared(const char* name, void (*kernel)(Parameters...), int64_t blocks,
                   int64_t shared_memory, Stream stream, Arguments... arguments) {
  if (blocks == 0) return;
  LONGSPAN_CHECK(blocks <= int64_t{0x7fffffff}, name, ": ", blocks, " blocks");
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(shared_memory));
  LONGSPAN_CHECK(error == cudaSuccess, "CUDA kernel ", name, " with ", shared_memory,
                 " bytes of shared memory: ", cudaGetErrorString(error));
  kernel<<<static_cast<unsigned>(blocks), kThreads, static_cast<size_t>(shared_memory), stream>>>(
      static_cast<Parameters>(arguments)...);
  error = cudaGetLastError();
  LONGSPAN_CHECK(error == cudaSuccess, "CUDA kernel ", name, ": ", cudaGetErrorString(error));
}

// Calls function<W>() for the row width of heads.
template <typename Function>
void for_row_width(int64_t width, const Function& function) {
  LONGSPAN_CHECK(kda_row_width(width) != 0, "linear attention on heads of width ", width);
  if (kda_row_width(width) == 32) return function.template operator()<32>();
  function.template operator()<128>();
}

}  // namespace longspan::cuda
