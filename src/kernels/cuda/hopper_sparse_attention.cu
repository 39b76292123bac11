#include "kernels/cuda/hopper_sparse_attention.h"

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/selected_rows.cuh"
#include "kernels/cuda/warp_group.cuh"

namespace longspan::cuda {
namespace {

constexpr int kHeads = 64;
constexpr int kWidth = 512;
constexpr int kTileKeys = 64;
constexpr int kGroupThreads = 128;
constexpr int kBlockThreads = 2 * kGroupThreads;
constexpr int kStages = 2;
constexpr int kRowChunks = kWidth * 2 / 16;
constexpr int kSlabBytes = 64 * kSlabRowBytes;  // 64 rows of 64 channels
constexpr int kRowsBytes = kWidth / 64 * kSlabBytes;
constexpr int kOwnColumns = kWidth / 2;  // of the output, for each warp group
constexpr int kMostSlots = 2072;
constexpr int kMostKeys = 2112;  // padded, and whole tiles of them
constexpr int kForwardBytes = (1 + kStages) * kRowsBytes + kSlabBytes + 1024;
static_assert(kForwardBytes + kMostKeys * 8 + 1024 <= 227 * 1024);

#if LONGSPAN_HOPPER

// The keys of a query, one after the other: those of its pools, then its tail.
struct Keys {
  __device__ Keys(const SelectedRows& rows, int64_t row)
      : pools(rows.pools + row * rows.pools_per_row),
        pool_tokens(static_cast<int>(rows.shape.pool_tokens)),
        in_pools(rows.num_pools[row] * pool_tokens),
        base(rows.bases[row]) {
    const int tail = static_cast<int>((rows.positions[row] + int64_t{1}) % pool_tokens);
    tail_begin = rows.positions[row] + 1 - tail;
    count = in_pools + tail;
  }

  // The row of a key; null behind the last.
  __device__ const Bf16* row_of(int key, void* const* table) const {
    if (key >= count) return nullptr;
    const int64_t position =
        key < in_pools ? int64_t{pools[key / pool_tokens]} * pool_tokens + key % pool_tokens
                       : int64_t{tail_begin} + key - in_pools;
    const auto* row = static_cast<const Bf16*>(table[base + position]);
    if (row == nullptr) __trap();  // the latent of this position is not here
    return row;
  }

  const int32_t* pools;
  int pool_tokens;
  int in_pools;
  int64_t base;
  int tail_begin;
  int count;
};

// Rows of 512 channels into slabs; rows that are null become zeros.
template <int kRows, typename RowOf>
__device__ inline void load_rows(unsigned char* target, const Bf16* any, const RowOf& row_of) {
  const int chunk = static_cast<int>(threadIdx.x) % kRowChunks;
#pragma unroll
  for (int i = 0; i < kRows * kRowChunks / kBlockThreads; ++i) {
    const int row = i * (kBlockThreads / kRowChunks) + static_cast<int>(threadIdx.x) / kRowChunks;
    const Bf16* from = row_of(row);
    copy_async<16>(target + slab_offset(row, chunk, kRows),
                   (from != nullptr ? from : any) + chunk * 8, from != nullptr);
  }
}

// Where a step's 16 channels begin in slabs of so many rows.
__device__ inline uint32_t step_offset(int step, int rows) {
  return static_cast<uint32_t>(step / 4 * rows * kSlabRowBytes + step % 4 * 32);
}

__device__ inline float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

__device__ inline float quad_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

__device__ inline uint32_t packed(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

#endif

// The first warp group has the scores of a tile's first 32 keys and the output's first half of
// channels, the second one the others.
__global__ void __launch_bounds__(kBlockThreads, 1)
    attention_kernel(SelectedRows rows, const Bf16* q, void* const* table, Bf16* o, float* lse) {
#if LONGSPAN_HOPPER
  extern __shared__ unsigned char unaligned[];
  __shared__ const Bf16* key_rows[kMostKeys];
  __shared__ float of_groups[2][kHeads];
  unsigned char* const heads = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  unsigned char* const tiles = heads + kRowsBytes;
  unsigned char* const weights = tiles + kStages * kRowsBytes;
  const int thread = static_cast<int>(threadIdx.x);
  const int group = thread / kGroupThreads;
  const int lane = thread % kWarp;
  const int head = thread % kGroupThreads / kWarp * 16 + lane / 4;  // and the one 8 below
  const int64_t row = blockIdx.x;
  const Keys keys(rows, row);
  const int num_tiles = (keys.count + kTileKeys - 1) / kTileKeys;
  q += row * kHeads * kWidth;

  for (int key = thread; key < num_tiles * kTileKeys; key += kBlockThreads) {
    key_rows[key] = keys.row_of(key, table);
  }
  const auto load_tile = [&](int tile) {
    if (tile < num_tiles) {
      load_rows<kTileKeys>(tiles + tile % kStages * kRowsBytes, q,
                           [&](int key) { return key_rows[tile * kTileKeys + key]; });
    }
    close_copies();
  };
  load_rows<kHeads>(heads, q, [&](int of) { return q + of * kWidth; });
  __syncthreads();
  load_tile(0);
  load_tile(1);

  const float scale = static_cast<float>(rows.shape.scale) * 1.4426950408889634f;  // for exp2
  float out[128];
  float largest[2] = {-INFINITY, -INFINITY};
  float sums[2] = {0, 0};  // over this thread's keys
  for (int tile = 0; tile < num_tiles; ++tile) {
    wait_for_copies<1>();
    show_to_tensor_cores();
    __syncthreads();
    const uint32_t tile_at = shared_address(tiles + tile % kStages * kRowsBytes);
    float scores[16];
    group_fence();
#pragma unroll 4
    for (int step = 0; step < kWidth / 16; ++step) {
      const uint32_t at = step_offset(step, kTileKeys);
      group_multiply_add(scores, group_rows(shared_address(heads) + at),
                         group_rows(tile_at + group * 32 * kSlabRowBytes + at), step > 0);
    }
    group_commit();
    group_wait(scores);

    float tile_max[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int key = tile * kTileKeys + group * 32 + i / 4 * 8 + lane % 4 * 2 + i % 2;
      if (key >= keys.count) scores[i] = -INFINITY;
      tile_max[i / 2 % 2] = fmaxf(tile_max[i / 2 % 2], scores[i]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      tile_max[half] = quad_max(tile_max[half]);
      if (lane % 4 == 0) of_groups[group][head + half * 8] = tile_max[half];
    }
    __syncthreads();
    float shrink[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float other = of_groups[1 - group][head + half * 8];
      const float now = fmaxf(largest[half], fmaxf(tile_max[half], other));
      shrink[half] = exp2f((largest[half] - now) * scale);
      largest[half] = now;
      sums[half] *= shrink[half];
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float first = exp2f((scores[n * 4 + half * 2] - largest[half]) * scale);
        const float second = exp2f((scores[n * 4 + half * 2 + 1] - largest[half]) * scale);
        sums[half] += first + second;
        *reinterpret_cast<uint32_t*>(weights + slab_offset(head + half * 8, group * 4 + n, kHeads) +
                                     lane % 4 * 4) = packed(first, second);
      }
    }
    if (tile > 0 && __any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
      for (int i = 0; i < 128; ++i) out[i] *= shrink[i / 2 % 2];
    }
    show_to_tensor_cores();
    __syncthreads();
    group_fence();
#pragma unroll
    for (int step = 0; step < kTileKeys / 16; ++step) {
      group_multiply_add<SummedIn::kRowsOfB>(
          out, group_rows(shared_address(weights) + step * 32),
          group_columns(
              tile_at + group * (kOwnColumns / 64) * kSlabBytes + step * 16 * kSlabRowBytes,
              kSlabBytes),
          tile > 0 || step > 0);
    }
    group_commit();
    group_wait(out);
    __syncthreads();
    load_tile(tile + 2);
  }
  wait_for_copies<0>();

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sums[half] = quad_sum(sums[half]);
    if (lane % 4 == 0) of_groups[group][head + half * 8] = sums[half];
  }
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int of = head + half * 8;
    const float sum = of_groups[0][of] + of_groups[1][of];
    if (group == 0 && lane % 4 == 0) {
      lse[row * kHeads + of] = (largest[half] * scale + log2f(sum)) * 0.6931471805599453f;
    }
    Bf16* to = o + (row * kHeads + of) * kWidth + group * kOwnColumns + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kOwnColumns / 8; ++n) {
      *reinterpret_cast<uint32_t*>(to + n * 8) =
          packed(out[n * 4 + half * 2] / sum, out[n * 4 + half * 2 + 1] / sum);
    }
  }
#else
  __trap();  // hopper_sparse_attention_runs() said no
#endif
}

constexpr int kGradientKeys = 32;  // of a tile
constexpr int kGradientSlabBytes = kGradientKeys * kSlabRowBytes;
constexpr int kGradientTileBytes = kWidth / 64 * kGradientSlabBytes;
constexpr int kGradientBytes = 2 * kRowsBytes + kStages * kGradientTileBytes + kSlabBytes + 1024;
static_assert(kGradientBytes + kMostKeys * 8 + 8 * kBlockThreads * 4 <= 227 * 1024);

// The first warp group has the products of q with a tile's keys, the second those of dO; each then
// finishes half of the keys, and has half of the channels of dQ.
__global__ void __launch_bounds__(kBlockThreads, 1)
    gradient_kernel(SelectedRows rows, const Bf16* q, const Bf16* d_o, const float* lse,
                    const float* delta, void* const* table, Bf16* d_q, Bf16* gradients) {
#if LONGSPAN_HOPPER
  extern __shared__ unsigned char unaligned[];
  __shared__ const Bf16* key_rows[kMostKeys];
  __shared__ float exchanged[2][8][kGroupThreads];
  unsigned char* const heads = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  unsigned char* const tiles = heads + 2 * kRowsBytes;
  unsigned char* const slab = tiles + kStages * kGradientTileBytes;  // dS, then the weights
  const int thread = static_cast<int>(threadIdx.x);
  const int group = thread / kGroupThreads;
  const int lane = thread % kWarp;
  const int head = thread % kGroupThreads / kWarp * 16 + lane / 4;
  const int64_t row = blockIdx.x;
  const auto padded_keys = static_cast<int>(rows.padded_keys);
  const int num_tiles = (padded_keys + kGradientKeys - 1) / kGradientKeys;
  q += row * kHeads * kWidth;
  d_o += row * kHeads * kWidth;
  gradients += row * 2 * kHeads * padded_keys;

  for (int slot = thread; slot < num_tiles * kGradientKeys; slot += kBlockThreads) {
    const int64_t position = slot_position(rows, row, slot);
    key_rows[slot] = nullptr;
    if (position < 0) continue;
    key_rows[slot] = static_cast<const Bf16*>(table[rows.bases[row] + position]);
    if (key_rows[slot] == nullptr) __trap();  // the latent of this position is not here
  }
  const auto load_tile = [&](int tile) {
    if (tile < num_tiles) {
      load_rows<kGradientKeys>(tiles + tile % kStages * kGradientTileBytes, q,
                               [&](int key) { return key_rows[tile * kGradientKeys + key]; });
    }
    close_copies();
  };
  load_rows<kHeads>(heads, q, [&](int of) { return q + of * kWidth; });
  load_rows<kHeads>(heads + kRowsBytes, q, [&](int of) { return d_o + of * kWidth; });
  __syncthreads();
  load_tile(0);
  load_tile(1);

  const float scale = static_cast<float>(rows.shape.scale);
  float of_lse[2];
  float of_delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    of_lse[half] = lse[row * kHeads + head + half * 8] * 1.4426950408889634f;
    of_delta[half] = delta[row * kHeads + head + half * 8];
  }
  const float exponent = scale * 1.4426950408889634f;
  float out[128];
  for (int tile = 0; tile < num_tiles; ++tile) {
    wait_for_copies<1>();
    show_to_tensor_cores();
    __syncthreads();
    const uint32_t tile_at = shared_address(tiles + tile % kStages * kGradientTileBytes);
    const uint32_t own_heads_at = shared_address(heads + group * kRowsBytes);
    float products[16];
    group_fence();
#pragma unroll 4
    for (int step = 0; step < kWidth / 16; ++step) {
      group_multiply_add(products, group_rows(own_heads_at + step_offset(step, kHeads)),
                         group_rows(tile_at + step_offset(step, kGradientKeys)), step > 0);
    }
    group_commit();
    group_wait(products);
    // Each gives away the half that the other one finishes.
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      exchanged[group][i][thread % kGroupThreads] = group == 0 ? products[8 + i] : products[i];
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int slot = tile * kGradientKeys + group * 16 + n * 8 + lane % 4 * 2;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float weights[2];
        float d_scores[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at = n * 4 + half * 2 + i;
          const float given = exchanged[1 - group][at][thread % kGroupThreads];
          const float score = group == 0 ? products[at] : given;
          const float d_weight = group == 0 ? given : products[8 + at];
          const bool has_key = key_rows[slot + i] != nullptr;
          weights[i] = has_key ? exp2f(score * exponent - of_lse[half]) : 0.0f;
          d_scores[i] = weights[i] * (d_weight - of_delta[half]) * scale;
        }
        unsigned char* const to = slab + lane % 4 * 4;
        const int chunk = group * 2 + n;
        *reinterpret_cast<uint32_t*>(to + slab_offset(head + half * 8, chunk, kHeads)) =
            packed(d_scores[0], d_scores[1]);
        *reinterpret_cast<uint32_t*>(to + slab_offset(head + half * 8, 4 + chunk, kHeads)) =
            packed(weights[0], weights[1]);
      }
    }
    show_to_tensor_cores();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int of_head = i * (kHeads / 2) + thread / 8;
      const int chunk = thread % 8;
      const int slot = tile * kGradientKeys + chunk % 4 * 8;
      if (slot >= padded_keys) continue;
      *reinterpret_cast<uint4*>(gradients + (chunk / 4 * kHeads + of_head) * padded_keys + slot) =
          *reinterpret_cast<const uint4*>(slab + slab_offset(of_head, chunk, kHeads));
    }
    group_fence();
#pragma unroll
    for (int step = 0; step < kGradientKeys / 16; ++step) {
      group_multiply_add<SummedIn::kRowsOfB>(
          out, group_rows(shared_address(slab) + step * 32),
          group_columns(
              tile_at + group * (kOwnColumns / 64) * kGradientSlabBytes + step * 16 * kSlabRowBytes,
              kGradientSlabBytes),
          tile > 0 || step > 0);
    }
    group_commit();
    group_wait(out);
    __syncthreads();
    load_tile(tile + 2);
  }
  wait_for_copies<0>();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    Bf16* to = d_q + (row * kHeads + head + half * 8) * kWidth + group * kOwnColumns + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kOwnColumns / 8; ++n) {
      *reinterpret_cast<uint32_t*>(to + n * 8) =
          packed(out[n * 4 + half * 2], out[n * 4 + half * 2 + 1]);
    }
  }
#else
  __trap();  // hopper_sparse_attention_runs() said no
#endif
}

template <typename... Parameters, typename... Arguments>
void launch_rows(const char* name, void (*kernel)(Parameters...), int64_t rows, int shared_bytes,
                 Stream stream, Arguments... arguments) {
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  LONGSPAN_CHECK(error == cudaSuccess, "CUDA kernel ", name, ": ", cudaGetErrorString(error));
  kernel<<<static_cast<unsigned>(rows), kBlockThreads, static_cast<size_t>(shared_bytes), stream>>>(
      arguments...);
  error = cudaGetLastError();
  LONGSPAN_CHECK(error == cudaSuccess, "CUDA kernel ", name, ": ", cudaGetErrorString(error));
}

}  // namespace

bool hopper_sparse_attention_runs(const SparseAttentionShape& shape, int64_t pools_per_row) {
  if (shape.heads != kHeads || shape.width != kWidth || shape.scale <= 0 ||
      (pools_per_row + 1) * shape.pool_tokens > kMostSlots) {
    return false;
  }
  int device = 0;
  int major = 0;
  LONGSPAN_CHECK(
      cudaGetDevice(&device) == cudaSuccess &&
          cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess,
      "the compute capability of the GPU is unknown");
  return major == 9;
}

void hopper_selected_attention(const SelectedRows& rows, const Bf16* q, void* const* table, Bf16* o,
                               float* lse, Stream stream) {
  launch_rows("sparse attention", attention_kernel, rows.count, kForwardBytes, stream, rows, q,
              table, o, lse);
}

void hopper_selected_gradient(const SelectedRows& rows, const SelectedGradient& given,
                              void* const* table, Bf16* d_q, Bf16* gradients, Stream stream) {
  launch_rows("gradient of sparse attention", gradient_kernel, rows.count, kGradientBytes, stream,
              rows, given.q, given.d_o, given.lse, given.delta, table, d_q, gradients);
}

}  // namespace longspan::cuda
