// Private to kernels/cuda: products of small matrices by a block of threads, sums in registers.
//
// Why: chunked linear attention is a dozen products of 16 to 128 rows. BlockSums is one result,
// spread over the block's kThreads threads: bfloat16 goes to tensor cores, float32 and float64 to
// plain FMA, so that one kernel text serves all three.
//
//   BlockSums<T, 64, 128> sums;                            // zero
//   sums.add_product<kPlain, kTransposed>(128, {a, lda}, {b, ldb});    // += A B, depth 128
//   sums.for_each_pair([&](int row, int column, auto& first, auto& second) { ... });
//
// A [rows, depth] stands row-major, or kTransposed as [depth, rows]; B [depth, columns] row-major,
// or kTransposed as [columns, depth]. Operands lie in shared memory (float32 and float64: anywhere)
// with rows of row_stride<T>(width) values, which avoids bank conflicts. Each thread owns the same
// pairs of neighbouring columns in every BlockSums of a size. Nothing here waits for other threads:
// __syncthreads() before operands are read and before they are overwritten is the caller's.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/warp_matrix.cuh"

namespace longspan::cuda {

enum Order : bool { kPlain = false, kTransposed = true };

template <typename T>
struct Operand {
  const T* data;
  int stride;
};

// Values from one row to the next of a matrix in shared memory.
template <typename T>
__host__ __device__ constexpr int row_stride(int width) {
  return width + (std::is_same_v<T, Bf16> ? 8 : 1);
}

// Plain FMA: thread (y, x) of 16 x 16 owns rows y + 16 r and column pairs 2 x + 32 c.
template <typename T, int kRows, int kColumns>
class BlockSums {
  static_assert(kRows % 16 == 0 && kColumns % 32 == 0 && kThreads == 256);
  static constexpr int kOwnRows = kRows / 16;
  static constexpr int kOwnPairs = kColumns / 32;

 public:
  // Only columns below `columns` need be right.
  template <Order kOrderA, Order kOrderB>
  __device__ void add_product(int depth, Operand<T> a, Operand<T> b, int columns = kColumns) {
    const int y = static_cast<int>(threadIdx.x) / 16;
    const int x = 2 * (static_cast<int>(threadIdx.x) % 16);
    const int pairs = (columns + 31) / 32;
#pragma unroll 4
    for (int k = 0; k < depth; ++k) {
      T of_a[kOwnRows];
#pragma unroll
      for (int r = 0; r < kOwnRows; ++r) {
        const int row = y + 16 * r;
        of_a[r] = kOrderA == kPlain ? a.data[row * a.stride + k] : a.data[k * a.stride + row];
      }
#pragma unroll
      for (int c = 0; c < kOwnPairs; ++c) {
        if (c >= pairs) break;
        const int column = x + 32 * c;
        const T* of_b =
            kOrderB == kPlain ? b.data + k * b.stride + column : b.data + column * b.stride + k;
        const T first = of_b[0];
        const T second = of_b[kOrderB == kPlain ? 1 : b.stride];
#pragma unroll
        for (int r = 0; r < kOwnRows; ++r) {
          sums_[r][c][0] += of_a[r] * first;
          sums_[r][c][1] += of_a[r] * second;
        }
      }
    }
  }

  // Calls function(row, column, value there, value of column + 1).
  template <typename Function>
  __device__ void for_each_pair(const Function& function) {
    const int y = static_cast<int>(threadIdx.x) / 16;
    const int x = 2 * (static_cast<int>(threadIdx.x) % 16);
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r) {
#pragma unroll
      for (int c = 0; c < kOwnPairs; ++c) {
        function(y + 16 * r, x + 32 * c, sums_[r][c][0], sums_[r][c][1]);
      }
    }
  }

 private:
  T sums_[kOwnRows][kOwnPairs][2] = {};
};

// Tensor cores: a warp owns 16 rows and some tiles of 8 columns.
template <int kRows, int kColumns>
class BlockSums<Bf16, kRows, kColumns> {
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kWarpsDown = kRows / 16;
  static constexpr int kWarpsAcross =
      (kWarps / kWarpsDown) < (kColumns / 8) ? (kWarps / kWarpsDown) : (kColumns / 8);
  static constexpr int kTiles = kColumns / 8 / kWarpsAcross;  // of 8 columns
  static_assert(kWarps % kWarpsDown == 0 && kTiles * kWarpsAcross * 8 == kColumns);

 public:
  template <Order kOrderA, Order kOrderB>
  __device__ void add_product(int depth, Operand<Bf16> a, Operand<Bf16> b, int columns = kColumns) {
    if (first_column() >= columns) return;  // idle warps too
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int low = lane % 8;
    const int odd = (lane / 8) % 2;
    const int high = lane / 16;
#pragma unroll 4
    for (int k = 0; k < depth; k += 16) {
      unsigned of_a[4];
      if constexpr (kOrderA == kPlain) {
        load_matrices<false>(a.data + (first_row() + low + 8 * odd) * a.stride + k + 8 * high,
                             of_a);
      } else {
        load_matrices<true>(a.data + (k + low + 8 * high) * a.stride + first_row() + 8 * odd, of_a);
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; tile += 2) {
        // Two tiles of columns at once; of a single one the second pair of matrices is the first
        // again.
        const int second = tile + 1 < kTiles ? 8 * high : 0;
        const int column = first_column() + 8 * tile + second;
        unsigned of_b[4];
        if constexpr (kOrderB == kPlain) {
          load_matrices<true>(b.data + (k + low + 8 * odd) * b.stride + column, of_b);
        } else {
          load_matrices<false>(b.data + (column + low) * b.stride + k + 8 * odd, of_b);
        }
        multiply_add(sums_[tile], of_a, of_b[0], of_b[1]);
        if (tile + 1 < kTiles) multiply_add(sums_[tile + 1], of_a, of_b[2], of_b[3]);
      }
    }
  }

  template <typename Function>
  __device__ void for_each_pair(const Function& function) {
    if (first_column() >= kColumns) return;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int row = first_row() + lane / 4;
    const int column = first_column() + 2 * (lane % 4);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      function(row, column + 8 * tile, sums_[tile][0], sums_[tile][1]);
      function(row + 8, column + 8 * tile, sums_[tile][2], sums_[tile][3]);
    }
  }

 private:
  __device__ static int first_row() {
    return 16 * (static_cast<int>(threadIdx.x) / kWarp % kWarpsDown);
  }
  // Not below kColumns for warps that own nothing.
  __device__ static int first_column() {
    return 8 * kTiles * (static_cast<int>(threadIdx.x) / kWarp / kWarpsDown);
  }

  float sums_[kTiles][4] = {};
};

}  // namespace longspan::cuda
