// Private to kernels/cuda: the second stage of sums over rows, in a fixed order.
//
// Why two stages: gradients of parameters are sums over all rows. Groups of rows make partial sums
// side by side; then these are added, always in the same order, without atomics.
//
//   add_partials("sum of RMSNorm's partial gradients", partials, groups, width, gradient, stream);
#pragma once

#include "kernels/cuda/launch.cuh"

namespace longspan::cuda {

// sum[c] += all partials of column c. A block takes 32 columns; each of its warps adds every 32nd
// partial, and the first warp adds the warps' sums.
template <typename A>
__global__ void add_partials_kernel(const A* partials, int64_t count, int64_t width, A* sum) {
  __shared__ A of_warps[kWarp][kWarp];
  const int64_t column = int64_t{blockIdx.x} * kWarp + threadIdx.x;
  A total = 0;
  if (column < width) {
    for (int64_t row = threadIdx.y; row < count; row += kWarp) {
      total += partials[row * width + column];
    }
  }
  of_warps[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) return;
  total = 0;
  for (int warp = 0; warp < kWarp; ++warp) total += of_warps[warp][threadIdx.x];
  sum[column] += total;
}

template <typename A>
void add_partials(const char* name, const A* partials, int64_t count, int64_t width, A* sum,
                  Stream stream) {
  if (count == 0) return;
  launch(name, add_partials_kernel<A>, divide_up(width, kWarp), dim3(kWarp, kWarp), stream,
         partials, count, width, sum);
}

}  // namespace longspan::cuda
