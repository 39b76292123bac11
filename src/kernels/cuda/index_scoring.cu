#include "kernels/cuda/index_scoring.h"

#include <algorithm>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/hopper_index_scores.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/warp_matrix.cuh"

namespace longspan::cuda {
namespace {

// --- Tensor cores: a warp keeps one query's heads in registers and runs over pools -------------

constexpr int kHeads = 32;
constexpr int kWidth = 128;
constexpr int kSteps = kWidth / 16;     // of one product
constexpr int kHeadTiles = kHeads / 8;  // columns of one product
constexpr int kWarps = 12;
constexpr int kTilePools = 64;
constexpr int kRowChunks = kWidth * 2 / 16;  // of 16 bytes
constexpr int kStages = 4;
constexpr int kTileElements = kTilePools * kWidth;

// The tile's rows lie in shared memory with their chunks permuted, so that eight rows of one chunk
// fall into different banks.
__device__ inline int tile_offset(int row, int chunk) {
  return (row * kRowChunks + (chunk ^ (row & 7))) * 8;
}

__device__ inline void load_tile(const FastIndexScores& of, int64_t tile, Bf16* target) {
  for (int idx = static_cast<int>(threadIdx.x); idx < kTilePools * kRowChunks;
       idx += kWarps * kWarp) {
    const int row = idx / kRowChunks;
    const int chunk = idx % kRowChunks;
    const int64_t pool = tile * kTilePools + row;
    const bool exists = pool < of.pools;
    copy_async<16>(target + tile_offset(row, chunk),
                   of.keys + (exists ? pool : 0) * kWidth + chunk * 8, exists);
  }
}

// Sums four values over the four lanes of a quad; lane i of it gets the sum of the i-th. All four
// sums add the lanes in the same pairs, so equal parts give equal bits.
__device__ inline float quad_sums(const float (&values)[4], int lane) {
  const bool high = (lane & 2) != 0;
  float first = high ? values[2] : values[0];
  float second = high ? values[3] : values[1];
  first += __shfl_xor_sync(0xffffffffu, high ? values[0] : values[2], 2);
  second += __shfl_xor_sync(0xffffffffu, high ? values[1] : values[3], 2);
  const bool odd = (lane & 1) != 0;
  const float kept = odd ? second : first;
  return kept + __shfl_xor_sync(0xffffffffu, odd ? first : second, 1);
}

// Columns of the products are heads, rows are pools: a thread holds 8 heads of each of its rows.
__global__ void __launch_bounds__(kWarps* kWarp, 1) fast_scores_kernel(FastIndexScores of) {
  extern __shared__ __align__(128) unsigned char shared[];
  Bf16* const tiles = reinterpret_cast<Bf16*>(shared);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t first_query = int64_t{blockIdx.x} * kWarps;
  const int64_t query = min(first_query + warp, of.queries - 1);
  const int64_t visible =
      first_query + warp < of.queries ? min(of.visibility.pools(query), of.pools) : 0;
  const int64_t seen =
      min(of.visibility.pools(min(first_query + kWarps, of.queries) - 1), of.pools);
  const int64_t num_tiles = seen <= 0 ? 0 : (seen + kTilePools - 1) / kTilePools;

  uint32_t heads[kHeadTiles][kSteps][2];
  float weights[kHeadTiles][2];
#pragma unroll
  for (int tile = 0; tile < kHeadTiles; ++tile) {
    const Bf16* row = of.q + (query * kHeads + tile * 8 + lane / 4) * kWidth + lane % 4 * 2;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      heads[tile][step][0] = *reinterpret_cast<const uint32_t*>(row + step * 16);
      heads[tile][step][1] = *reinterpret_cast<const uint32_t*>(row + step * 16 + 8);
    }
    const Bf16* weight = of.head_weights + query * kHeads + tile * 8 + lane % 4 * 2;
    weights[tile][0] = of.scale * widen(weight[0]);
    weights[tile][1] = of.scale * widen(weight[1]);
  }

  const int64_t stride = gridDim.y;
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    const int64_t tile = blockIdx.y + stage * stride;
    if (tile < num_tiles) load_tile(of, tile, tiles + stage * kTileElements);
    close_copies();
  }
  int stage = 0;
  for (int64_t tile = blockIdx.y; tile < num_tiles; tile += stride) {
    wait_for_copies<kStages - 2>();
    __syncthreads();
    const int64_t next = tile + (kStages - 1) * stride;
    const int free_stage = stage == 0 ? kStages - 1 : stage - 1;
    if (next < num_tiles) load_tile(of, next, tiles + free_stage * kTileElements);
    close_copies();

    const Bf16* const rows = tiles + stage * kTileElements;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t first_pool = tile * kTilePools + half * 32;
      if (first_pool >= visible) break;
      float dots[2][kHeadTiles][4] = {};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          uint32_t pools[4];
          load_matrices<false>(
              rows + tile_offset(half * 32 + m * 16 + lane % 16, step * 2 + lane / 16), pools);
#pragma unroll
          for (int n = 0; n < kHeadTiles; ++n) {
            multiply_add(dots[m][n], pools, heads[n][step][0], heads[n][step][1]);
          }
        }
      }
      float sums[4] = {};  // of rows lane / 4 + 8 i
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            sums[m * 2 + i / 2] += weights[n][i % 2] * fmaxf(dots[m][n][i], 0.0f);
          }
        }
      }
      const float score = quad_sums(sums, lane);
      const int64_t pool = first_pool + lane % 4 * 8 + lane / 4;
      if (pool < visible) of.scores[query * of.row_stride + pool] = score;
    }
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  wait_for_copies<0>();
}

int multiprocessors() {
  int device = 0;
  int count = 0;
  LONGSPAN_CHECK(
      cudaGetDevice(&device) == cudaSuccess &&
          cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) == cudaSuccess,
      "the number of multiprocessors of the GPU is unknown");
  return count;
}

void launch_fast_scores(const FastIndexScores& of, int64_t tiles, Stream stream) {
  constexpr int kSharedBytes = kStages * kTileElements * static_cast<int>(sizeof(Bf16));
  const cudaError_t allowed = cudaFuncSetAttribute(
      fast_scores_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  LONGSPAN_CHECK(allowed == cudaSuccess, "index scores: ", cudaGetErrorString(allowed));
  const int64_t groups = divide_up(of.queries, kWarps);
  // Some waves of blocks, and never less than four tiles for each.
  const int64_t splits = std::clamp<int64_t>(divide_up(4 * multiprocessors(), groups), 1,
                                             std::max<int64_t>(1, tiles / 4));
  const dim3 blocks(static_cast<unsigned>(groups), static_cast<unsigned>(splits));
  fast_scores_kernel<<<blocks, kWarps * kWarp, kSharedBytes, stream>>>(of);
  const cudaError_t error = cudaGetLastError();
  LONGSPAN_CHECK(error == cudaSuccess, "CUDA kernel index scores: ", cudaGetErrorString(error));
}

// --- Plain loops for any shape and type ---------------------------------------------------------

constexpr int kPlainQueries = 16;
constexpr int kPlainPools = 128;
constexpr int kPlainChannels = 16;

template <typename T>
struct PlainScores {
  const T* q;
  const T* head_weights;
  int64_t queries;
  const T* keys;
  int64_t pools;
  IndexVisibility visibility;
  int64_t heads;
  int64_t width;
  Accumulate<T> scale;
  Accumulate<T>* scores;
  int64_t row_stride;
};

// A thread has 2 queries and 4 pools; channels pass through shared memory. Heads and channels are
// added up in their order, so what a block holds besides does not matter.
template <typename T>
__global__ void __launch_bounds__(kThreads) plain_scores_kernel(PlainScores<T> of) {
  using A = Accumulate<T>;
  __shared__ A q_tile[kPlainQueries][kPlainChannels + 1];
  __shared__ A key_tile[kPlainPools][kPlainChannels + 1];
  const int64_t first_query = int64_t{blockIdx.y} * kPlainQueries;
  const int64_t first_pool = int64_t{blockIdx.x} * kPlainPools;
  const int64_t last_query = min(first_query + kPlainQueries, of.queries) - 1;
  if (of.visibility.pools(last_query) <= first_pool) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int pool_lane = thread % kWarp;
  const int query_lane = thread / kWarp;
  A scores[2][4] = {};
  for (int64_t head = 0; head < of.heads; ++head) {
    A dots[2][4] = {};
    for (int64_t channel = 0; channel < of.width; channel += kPlainChannels) {
      __syncthreads();
      for (int idx = thread; idx < kPlainQueries * kPlainChannels; idx += kThreads) {
        const int64_t query = first_query + idx / kPlainChannels;
        const int64_t c = channel + idx % kPlainChannels;
        const bool exists = query < of.queries && c < of.width;
        q_tile[idx / kPlainChannels][idx % kPlainChannels] =
            exists ? widen(of.q[(query * of.heads + head) * of.width + c]) : A{0};
      }
      for (int idx = thread; idx < kPlainPools * kPlainChannels; idx += kThreads) {
        const int64_t pool = first_pool + idx / kPlainChannels;
        const int64_t c = channel + idx % kPlainChannels;
        const bool exists = pool < of.pools && c < of.width;
        key_tile[idx / kPlainChannels][idx % kPlainChannels] =
            exists ? widen(of.keys[pool * of.width + c]) : A{0};
      }
      __syncthreads();
#pragma unroll
      for (int c = 0; c < kPlainChannels; ++c) {
        A keys[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) keys[j] = key_tile[pool_lane + j * kWarp][c];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const A q = q_tile[query_lane + i * (kThreads / kWarp)][c];
#pragma unroll
          for (int j = 0; j < 4; ++j) dots[i][j] += q * keys[j];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t query = first_query + query_lane + i * (kThreads / kWarp);
      const A weight = query < of.queries ? widen(of.head_weights[query * of.heads + head]) : A{0};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const A product = of.scale * dots[i][j];
        scores[i][j] += weight * (product > 0 ? product : A{0});
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t query = first_query + query_lane + i * (kThreads / kWarp);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t pool = first_pool + pool_lane + j * kWarp;
      if (query < of.queries && pool < of.pools) {
        of.scores[query * of.row_stride + pool] = scores[i][j];
      }
    }
  }
}

}  // namespace

template <typename T>
bool index_scores_are_fast(const IndexShape& shape) {
  return std::is_same_v<T, Bf16> && shape.heads == kHeads && shape.width == kWidth &&
         shape.scale > 0;
}

template <typename T>
void index_scores(const IndexShape& shape, const IndexQueryRows<T>& queries,
                  const IndexPoolRows<T>& pools, const IndexScoreBlock<Accumulate<T>>& block,
                  Stream stream) {
  const IndexVisibility visibility{queries.first_position, shape.pool_tokens, pools.first_pool};
  if (queries.count == 0 || visibility.pools(queries.count - 1) <= 0) return;
  const int64_t seen = std::min(visibility.pools(queries.count - 1), pools.count);
  if constexpr (std::is_same_v<T, Bf16>) {
    if (index_scores_are_fast<T>(shape) && is_aligned(pools.keys) && is_aligned(queries.q)) {
      const FastIndexScores of{queries.q,
                               queries.head_weights,
                               queries.count,
                               pools.keys,
                               pools.count,
                               visibility,
                               static_cast<float>(shape.scale),
                               block.scores,
                               block.row_stride};
      if (hopper_index_scores_run()) {
        hopper_index_scores(of, seen, stream);
      } else {
        launch_fast_scores(of, divide_up(seen, kTilePools), stream);
      }
      return;
    }
  }
  const dim3 blocks(static_cast<unsigned>(divide_up(seen, kPlainPools)),
                    static_cast<unsigned>(divide_up(queries.count, kPlainQueries)));
  plain_scores_kernel<T><<<blocks, kThreads, 0, stream>>>(
      PlainScores<T>{queries.q, queries.head_weights, queries.count, pools.keys, pools.count,
                     visibility, shape.heads, shape.width, static_cast<Accumulate<T>>(shape.scale),
                     block.scores, block.row_stride});
  const cudaError_t error = cudaGetLastError();
  LONGSPAN_CHECK(error == cudaSuccess,
                 "CUDA kernel plain index scores: ", cudaGetErrorString(error));
}

#define LONGSPAN_INSTANTIATE(T)                                                                    \
  template bool index_scores_are_fast<T>(const IndexShape&);                                       \
  template void index_scores(const IndexShape&, const IndexQueryRows<T>&, const IndexPoolRows<T>&, \
                             const IndexScoreBlock<Accumulate<T>>&, Stream);
LONGSPAN_INSTANTIATE(Bf16)
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan::cuda
