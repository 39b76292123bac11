// Private to kernels/cuda: copies from global to shared memory that run while a block computes.
//
//   copy_async<16>(tile + at, from + at, row < rows);      // zeros if not
//   close_copies();
//   wait_for_copies<0>();  __syncthreads();
//
// Copies of a thread form groups, closed one by one; wait_for_copies<n> leaves the last n of them
// under way. Addresses are aligned to the size.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace longspan::cuda {

template <int kBytes>
__device__ inline void copy_async(void* to, const void* from, bool real) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  const int bytes = real ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                 "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from),
                 "n"(kBytes), "r"(bytes)
                 : "memory");
  }
}

__device__ inline void close_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int kGroups>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

}  // namespace longspan::cuda
