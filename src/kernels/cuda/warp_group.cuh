// Private to kernels/cuda: products of a warp group (128 threads) on Hopper's tensor cores, which
// read both factors from shared memory while the threads do other work. sm_90a only.
//
//   group_fence();                                        // before the first product
//   for (int step = 0; step < 8; ++step)
//     group_multiply_add(c, group_rows(a + step_at), group_rows(b + step_at), step > 0);
//   group_commit(); group_wait(c);                        // now c may be read
//
// A factor lies in slabs of 64 columns: rows of 128 bytes one after the other from an address that
// is a multiple of 1,024, the 16-byte chunk i of row r at place i ^ (r % 8). What threads wrote
// there they must show to the tensor cores: show_to_tensor_cores(), then a barrier.
// Of c [64, N] thread t holds rows 16 (t / 32) + t % 32 / 4 and the one 8 below, in c[4 i + {0, 1}]
// and c[4 i + {2, 3}] columns 8 i + 2 (t % 4) and the next.
#pragma once

#include <cstdint>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LONGSPAN_HOPPER 1
#else
#define LONGSPAN_HOPPER 0
#endif

namespace longspan::cuda {

constexpr int kSlabRowBytes = 128;
constexpr int kSlabChunks = 8;  // of 16 bytes, in a row

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// The place of a chunk of a row in slabs of so many rows.
__device__ inline uint32_t slab_offset(int row, int chunk, int rows) {
  return static_cast<uint32_t>(chunk / kSlabChunks * rows * kSlabRowBytes + row * kSlabRowBytes +
                               ((chunk % kSlabChunks) ^ (row & 7)) * 16);
}

__device__ inline uint64_t group_factor(uint32_t address, uint64_t leading_bytes) {
  constexpr uint64_t kEightRowsBytes = 1024;
  constexpr uint64_t kSwizzle128 = 1;
  return uint64_t{(address & 0x3ffffu) >> 4} | (leading_bytes >> 4) << 16 |
         (kEightRowsBytes >> 4) << 32 | kSwizzle128 << 62;
}

// A factor whose rows are those of the product: 16 columns of one slab from the address on.
__device__ inline uint64_t group_rows(uint32_t address) {
  return group_factor(address, 16);
}

// A second factor of which 16 rows are summed over, its columns in slabs so many bytes apart.
__device__ inline uint64_t group_columns(uint32_t address, uint64_t slab_bytes) {
  return group_factor(address, slab_bytes);
}

#if LONGSPAN_HOPPER

__device__ inline void show_to_tensor_cores() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

__device__ inline void group_fence() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}

__device__ inline void group_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

// Waits for all products; c may not be read earlier, which the compiler learns from the second
// statement.
template <int kValues>
__device__ inline void group_wait(float (&c)[kValues]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
#pragma unroll
  for (int i = 0; i < kValues; ++i) asm volatile("" : "+f"(c[i])::"memory");
}

// Where the 16 values that a product sums over lie in b.
enum class SummedIn : int { kColumnsOfB = 0, kRowsOfB = 1 };

// c = a b^T, added to what c holds if `keep`: 16 columns of a [64, ..] and b [256, ..]; or c = a b:
// 16 columns of a and 16 rows of b [.., 256].
template <SummedIn kSummedIn = SummedIn::kColumnsOfB>
__device__ inline void group_multiply_add(float (&c)[128], uint64_t a, uint64_t b, bool keep) {
  asm volatile(
      "{\n"
      ".reg .pred keep;\n"
      "setp.ne.b32 keep, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, "
      "%72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, "
      "%88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, "
      "%104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, "
      "%120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, keep, 1, 1, 0, %131;\n"
      "}\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
        "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]),
        "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]),
        "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]),
        "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]),
        "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]),
        "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]), "+f"(c[48]),
        "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
        "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]),
        "+f"(c[63]), "+f"(c[64]), "+f"(c[65]), "+f"(c[66]), "+f"(c[67]), "+f"(c[68]), "+f"(c[69]),
        "+f"(c[70]), "+f"(c[71]), "+f"(c[72]), "+f"(c[73]), "+f"(c[74]), "+f"(c[75]), "+f"(c[76]),
        "+f"(c[77]), "+f"(c[78]), "+f"(c[79]), "+f"(c[80]), "+f"(c[81]), "+f"(c[82]), "+f"(c[83]),
        "+f"(c[84]), "+f"(c[85]), "+f"(c[86]), "+f"(c[87]), "+f"(c[88]), "+f"(c[89]), "+f"(c[90]),
        "+f"(c[91]), "+f"(c[92]), "+f"(c[93]), "+f"(c[94]), "+f"(c[95]), "+f"(c[96]), "+f"(c[97]),
        "+f"(c[98]), "+f"(c[99]), "+f"(c[100]), "+f"(c[101]), "+f"(c[102]), "+f"(c[103]),
        "+f"(c[104]), "+f"(c[105]), "+f"(c[106]), "+f"(c[107]), "+f"(c[108]), "+f"(c[109]),
        "+f"(c[110]), "+f"(c[111]), "+f"(c[112]), "+f"(c[113]), "+f"(c[114]), "+f"(c[115]),
        "+f"(c[116]), "+f"(c[117]), "+f"(c[118]), "+f"(c[119]), "+f"(c[120]), "+f"(c[121]),
        "+f"(c[122]), "+f"(c[123]), "+f"(c[124]), "+f"(c[125]), "+f"(c[126]), "+f"(c[127])
      : "l"(a), "l"(b), "r"(keep ? 1 : 0), "n"(static_cast<int>(kSummedIn)));
}

// The same with b [32, ..].
__device__ inline void group_multiply_add(float (&c)[16], uint64_t a, uint64_t b, bool keep) {
  asm volatile(
      "{\n"
      ".reg .pred keep;\n"
      "setp.ne.b32 keep, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15}, "
      "%16, %17, keep, 1, 1, 0, 0;\n"
      "}\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
        "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]),
        "+f"(c[14]), "+f"(c[15])
      : "l"(a), "l"(b), "r"(keep ? 1 : 0));
}

#endif

}  // namespace longspan::cuda
