// Private to kernels/cuda: what all kernels share on the device side, and how they are launched.
//
// Vectors of 16 bytes in, arithmetic in the accumulation type, vectors out:
//
//   Accumulate<T> values[kVector];
//   load<kVector>(x + at, values);  ...  store<kVector>(y + at, values);
//
// Sums over threads go by a fixed tree. launch() checks the launch and names it in the error.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "base/check.h"
#include "kernels/cuda/cuda_types.h"

static_assert(__cplusplus >= 202002L, "nvcc must compile C++20");

namespace longspan::cuda {

constexpr int kThreads = 256;
constexpr int kWarp = 32;

// Elements of a 16-byte access.
template <typename T>
constexpr int kWide = 16 / static_cast<int>(sizeof(T));

template <typename T>
__device__ inline Accumulate<T> widen(T value) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return __bfloat162float(value);
  } else {
    return value;
  }
}

template <typename T>
__device__ inline T narrow_to(Accumulate<T> value) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return __float2bfloat16(value);
  } else {
    return value;
  }
}

template <int kVector, typename T>
struct alignas(kVector * sizeof(T)) Packed {
  T values[kVector];
};

template <int kVector, typename T>
__device__ inline void load(const T* from, Accumulate<T>* values) {
  const auto packed = *reinterpret_cast<const Packed<kVector, T>*>(from);
#pragma unroll
  for (int i = 0; i < kVector; ++i) values[i] = widen(packed.values[i]);
}

template <int kVector, typename T>
__device__ inline void store(T* to, const Accumulate<T>* values) {
  Packed<kVector, T> packed;
#pragma unroll
  for (int i = 0; i < kVector; ++i) packed.values[i] = narrow_to<T>(values[i]);
  *reinterpret_cast<Packed<kVector, T>*>(to) = packed;
}

template <typename A>
__device__ inline A warp_sum(A value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

template <typename A>
__device__ inline A warp_max(A value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const A other = __shfl_xor_sync(0xffffffffu, value, distance);
    value = other > value ? other : value;
  }
  return value;
}

// Over all threads of a block of kThreads; every thread gets the result. `shared` has a word for
// each warp.
template <typename A>
__device__ inline A block_sum(A value, A* shared) {
  value = warp_sum(value);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  __syncthreads();  // the words may still be read from the reduction before
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  return warp_sum(lane < kThreads / kWarp ? shared[lane] : A{0});
}

template <typename A>
__device__ inline A block_max(A value, A* shared) {
  value = warp_max(value);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  __syncthreads();
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  return warp_max(shared[lane % (kThreads / kWarp)]);
}

// Index of the calling thread in the whole grid.
__device__ inline int64_t grid_thread() {
  return int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}

inline int64_t divide_up(int64_t count, int64_t part) {
  return (count + part - 1) / part;
}

inline bool is_aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

template <typename... Parameters, typename... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), int64_t blocks, dim3 threads,
            Stream stream, Arguments... arguments) {
  if (blocks == 0) return;
  LONGSPAN_CHECK(blocks <= int64_t{0x7fffffff}, name, ": ", blocks, " blocks");
  kernel<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(
      static_cast<Parameters>(arguments)...);
  const cudaError_t error = cudaGetLastError();
  LONGSPAN_CHECK(error == cudaSuccess, "CUDA kernel ", name, ": ", cudaGetErrorString(error));
}

}  // namespace longspan::cuda
