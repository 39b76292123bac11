// Private to kernels/cuda: the tensor-core instructions that a warp runs on bfloat16, by name.
//
//   unsigned a[4], b[2];
//   load_matrices<false>(address of this lane's row, a);      // four 8 x 8 matrices
//   multiply_add(sums, a, b);                                 // 16 x 8 += 16 x 16 times 16 x 8
//
// Lane l holds, of a 16 x 8 sum: row l / 4 and row l / 4 + 8, columns 2 (l % 4) and the next one.
// Rows of 8 values begin at multiples of 16 bytes of shared memory. All lanes of the warp take
// part.
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/cuda_types.h"

namespace longspan::cuda {

// Matrix m is given by the rows that lanes 8 m .. 8 m + 7 point to; transposed, by its columns.
template <bool kTransposed>
__device__ inline void load_matrices(const Bf16* row, unsigned (&matrices)[4]) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(address)
                 : "memory");
  }
}

__device__ inline void multiply_add(float (&sums)[4], const unsigned (&a)[4], unsigned b0,
                                    unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace longspan::cuda
