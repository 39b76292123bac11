#include "kernels/cuda/hopper_index_scores.h"

#include <algorithm>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/warp_group.cuh"

namespace longspan::cuda {
namespace {

constexpr int kHeads = 32;
constexpr int kWidth = 128;
constexpr int kQueries = 8;  // of a block: 256 columns of its products
constexpr int kColumns = kQueries * kHeads;
constexpr int kGroups = 3;  // warp groups; each has pools of its own
constexpr int kGroupThreads = 128;
constexpr int kBlockThreads = kGroups * kGroupThreads;
constexpr int kTilePools = 64;
constexpr int kStages = 3;
constexpr int kRowChunks = kWidth * 2 / 16;
constexpr int kTileBytes = kTilePools * kWidth * 2;
constexpr int kHeadsBytes = kColumns * kWidth * 2;
constexpr int kSteps = kWidth / 16;
constexpr int kSharedBytes = kHeadsBytes + kGroups * kStages * kTileBytes + 1024;

#if LONGSPAN_HOPPER

// Where a step's 16 channels begin in a factor of so many rows.
__device__ inline uint32_t step_offset(int step, int rows) {
  return static_cast<uint32_t>(step / 4 * rows * kSlabRowBytes + step % 4 * 32);
}

__device__ inline void load_heads(const FastIndexScores& of, int64_t first_query,
                                  unsigned char* target) {
  for (int idx = static_cast<int>(threadIdx.x); idx < kColumns * kRowChunks; idx += kBlockThreads) {
    const int row = idx / kRowChunks;
    const int chunk = idx % kRowChunks;
    const bool exists = first_query + row / kHeads < of.queries;
    copy_async<16>(target + slab_offset(row, chunk, kColumns),
                   of.q + (exists ? first_query * kHeads + row : 0) * kWidth + chunk * 8, exists);
  }
}

__device__ inline void load_tile(const FastIndexScores& of, int64_t tile, unsigned char* target) {
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
#pragma unroll
  for (int i = 0; i < kTilePools * kRowChunks / kGroupThreads; ++i) {
    const int row = i * (kGroupThreads / kRowChunks) + thread / kRowChunks;
    const int chunk = thread % kRowChunks;
    const int64_t pool = tile * kTilePools + row;
    const bool exists = pool < of.pools;
    copy_async<16>(target + slab_offset(row, chunk, kTilePools),
                   of.keys + (exists ? pool : 0) * kWidth + chunk * 8, exists);
  }
}

__device__ inline void group_barrier(int group) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(group + 1), "n"(kGroupThreads) : "memory");
}

// The relu-weighted sums over heads of a thread's two rows: two queries of each lane of a quad,
// each the sum over the quad, in the same pairs of lanes for all.
__device__ inline void head_sums(const float (&dots)[128], const float* weights, int lane,
                                 float (&sums)[2][2]) {
  float parts[kQueries][2];
#pragma unroll
  for (int query = 0; query < kQueries; ++query) {
    parts[query][0] = 0;
    parts[query][1] = 0;
#pragma unroll
    for (int n = 0; n < kHeads / 8; ++n) {
      const float2 pair =
          *reinterpret_cast<const float2*>(weights + query * kHeads + n * 8 + lane % 4 * 2);
      const float* of = dots + query * 16 + n * 4;
      parts[query][0] += pair.x * fmaxf(of[0], 0.0f);
      parts[query][0] += pair.y * fmaxf(of[1], 0.0f);
      parts[query][1] += pair.x * fmaxf(of[2], 0.0f);
      parts[query][1] += pair.y * fmaxf(of[3], 0.0f);
    }
  }
  const bool high = (lane & 2) != 0;
  const bool odd = (lane & 1) != 0;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float kept[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      kept[i] = high ? parts[i + 4][row] : parts[i][row];
      kept[i] += __shfl_xor_sync(0xffffffffu, high ? parts[i][row] : parts[i + 4][row], 2);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sums[i][row] = odd ? kept[i + 2] : kept[i];
      sums[i][row] += __shfl_xor_sync(0xffffffffu, odd ? kept[i] : kept[i + 2], 1);
    }
  }
}

#endif

// Rows of the products are pools, columns are heads of eight queries. While one warp group adds up
// its heads, the tensor cores work for the others.
__global__ void __launch_bounds__(kBlockThreads, 1) hopper_scores_kernel(FastIndexScores of) {
#if LONGSPAN_HOPPER
  extern __shared__ unsigned char unaligned[];
  __shared__ float weights[kColumns];
  unsigned char* const heads = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int warp = static_cast<int>(threadIdx.x) % kGroupThreads / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  unsigned char* const tiles = heads + kHeadsBytes + group * kStages * kTileBytes;
  const int64_t first_query = int64_t{blockIdx.x} * kQueries;
  const int64_t last_query = min(first_query + kQueries, of.queries) - 1;
  const int64_t seen = min(of.visibility.pools(last_query), of.pools);
  const int64_t num_tiles = seen <= 0 ? 0 : (seen + kTilePools - 1) / kTilePools;
  const int64_t stride = int64_t{gridDim.y} * kGroups;
  int64_t tile = int64_t{blockIdx.y} * kGroups + group;

  load_heads(of, first_query, heads);
  close_copies();
  for (int idx = static_cast<int>(threadIdx.x); idx < kColumns; idx += kBlockThreads) {
    const bool exists = first_query + idx / kHeads < of.queries;
    weights[idx] = exists ? of.scale * widen(of.head_weights[first_query * kHeads + idx]) : 0.0f;
  }
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (tile + stage * stride < num_tiles) {
      load_tile(of, tile + stage * stride, tiles + stage * kTileBytes);
    }
    close_copies();
  }
  wait_for_copies<kStages - 1>();  // the heads
  show_to_tensor_cores();
  __syncthreads();

  int64_t visible[2];  // of the two queries whose sums this lane gets
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t query = first_query + lane % 4 * 2 + i;
    visible[i] = query < of.queries ? min(of.visibility.pools(query), of.pools) : 0;
  }
  float* const scores = of.scores + (first_query + lane % 4 * 2) * of.row_stride;
  const uint32_t heads_at = shared_address(heads);
  int stage = 0;
  for (; tile < num_tiles; tile += stride) {
    wait_for_copies<kStages - 2>();
    show_to_tensor_cores();
    group_barrier(group);
    const int64_t next = tile + (kStages - 1) * stride;
    const int free_stage = stage == 0 ? kStages - 1 : stage - 1;
    if (next < num_tiles) load_tile(of, next, tiles + free_stage * kTileBytes);
    close_copies();

    float dots[128];
    const uint32_t tile_at = shared_address(tiles + stage * kTileBytes);
    group_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      group_multiply_add(dots, group_rows(tile_at + step_offset(step, kTilePools)),
                         group_rows(heads_at + step_offset(step, kColumns)), step > 0);
    }
    group_commit();
    group_wait(dots);
    float sums[2][2];
    head_sums(dots, weights, lane, sums);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int64_t pool = tile * kTilePools + warp * 16 + row * 8 + lane / 4;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (pool < visible[i]) scores[i * of.row_stride + pool] = sums[i][row];
      }
    }
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  wait_for_copies<0>();
#else
  __trap();  // hopper_index_scores_run() said no
#endif
}

int attribute(cudaDeviceAttr name) {
  int device = 0;
  int value = 0;
  LONGSPAN_CHECK(cudaGetDevice(&device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&value, name, device) == cudaSuccess,
                 "attribute ", static_cast<int>(name), " of the GPU is unknown");
  return value;
}

}  // namespace

bool hopper_index_scores_run() {
  return attribute(cudaDevAttrComputeCapabilityMajor) == 9;
}

void hopper_index_scores(const FastIndexScores& of, int64_t seen, Stream stream) {
  const cudaError_t allowed = cudaFuncSetAttribute(
      hopper_scores_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  LONGSPAN_CHECK(allowed == cudaSuccess, "index scores: ", cudaGetErrorString(allowed));
  const int64_t blocks = divide_up(of.queries, kQueries);
  const int64_t tiles = divide_up(seen, kTilePools);
  // One wave of blocks if the queries are few, and some tiles for each warp group.
  const int64_t splits = std::clamp<int64_t>(attribute(cudaDevAttrMultiProcessorCount) / blocks, 1,
                                             std::max<int64_t>(1, tiles / (4 * kGroups)));
  hopper_scores_kernel<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(splits)),
                         kBlockThreads, kSharedBytes, stream>>>(of);
  const cudaError_t error = cudaGetLastError();
  LONGSPAN_CHECK(error == cudaSuccess, "CUDA kernel index scores: ", cudaGetErrorString(error));
}

}  // namespace longspan::cuda
