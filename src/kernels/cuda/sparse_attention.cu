#include "kernels/cuda/sparse_attention.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/selected_rows.cuh"

namespace longspan::cuda {
namespace {

constexpr int kWarps = kThreads / kWarp;

__device__ inline int warp_of_block() {
  return static_cast<int>(threadIdx.x) / kWarp;
}

__device__ inline int lane_of_warp() {
  return static_cast<int>(threadIdx.x) % kWarp;
}

__global__ void table_kernel(const LineSegment* segments, int64_t count, int64_t begin,
                             int64_t lines, int64_t row_bytes, void** table) {
  const int64_t at = grid_thread();
  if (at >= lines) return;
  const int64_t line = begin + at;
  int64_t low = 0;  // the last segment that begins at the line or before
  int64_t high = count;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (segments[middle].begin <= line) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const bool found = count > 0 && segments[low].begin <= line && line < segments[low].end;
  table[at] =
      found ? static_cast<char*>(segments[low].first_row) + (line - segments[low].begin) * row_bytes
            : nullptr;
}

__global__ void count_kernel(const int32_t* pools, int64_t rows, int64_t pools_per_row,
                             int32_t* num_pools) {
  const int64_t row = grid_thread() / kWarp;
  if (row >= rows) return;
  int count = 0;
  for (int64_t idx = lane_of_warp(); idx < pools_per_row; idx += kWarp) {
    count += pools[row * pools_per_row + idx] >= 0 ? 1 : 0;
  }
  count = warp_sum(count);
  if (lane_of_warp() == 0) num_pools[row] = count;
}

// A warp copies one row.
template <typename Unit>
__global__ void gather_kernel(SelectedRows rows, void* const* table, int64_t units,
                              Unit* gathered) {
  const int64_t at = grid_thread() / kWarp;
  if (at >= rows.count * rows.padded_keys) return;
  const int64_t row = at / rows.padded_keys;
  const int64_t position = slot_position(rows, row, at % rows.padded_keys);
  Unit* to = gathered + at * units;
  if (position < 0) {
    for (int64_t unit = lane_of_warp(); unit < units; unit += kWarp) to[unit] = Unit{};
    return;
  }
  const auto* from = static_cast<const Unit*>(table[rows.bases[row] + position]);
  if (from == nullptr) __trap();  // the latent of this position is not here
  for (int64_t unit = lane_of_warp(); unit < units; unit += kWarp) to[unit] = from[unit];
}

// A warp has one head of one row.
template <typename T>
__global__ void softmax_kernel(SelectedRows rows, const Accumulate<T>* scores, T* weights,
                               Accumulate<T>* lse) {
  using A = Accumulate<T>;
  const int64_t at = grid_thread() / kWarp;
  if (at >= rows.count * rows.shape.heads) return;
  const int64_t row = at / rows.shape.heads;
  const A scale = static_cast<A>(rows.shape.scale);
  scores += at * rows.padded_keys;
  weights += at * rows.padded_keys;
  A largest = -INFINITY;
  for (int64_t slot = lane_of_warp(); slot < rows.padded_keys; slot += kWarp) {
    if (slot_has_key(rows, row, slot)) largest = scores[slot] > largest ? scores[slot] : largest;
  }
  largest = warp_max(largest);
  A sum = 0;
  for (int64_t slot = lane_of_warp(); slot < rows.padded_keys; slot += kWarp) {
    if (slot_has_key(rows, row, slot)) sum += exp(scale * (scores[slot] - largest));
  }
  sum = warp_sum(sum);
  for (int64_t slot = lane_of_warp(); slot < rows.padded_keys; slot += kWarp) {
    const A weight =
        slot_has_key(rows, row, slot) ? exp(scale * (scores[slot] - largest)) / sum : A{0};
    weights[slot] = narrow_to<T>(weight);
  }
  if (lane_of_warp() == 0) lse[at] = scale * largest + log(sum);
}

template <typename T>
__global__ void score_gradient_kernel(SelectedRows rows, const Accumulate<T>* products,
                                      const Accumulate<T>* lse, const Accumulate<T>* delta,
                                      T* gradients) {
  using A = Accumulate<T>;
  const int64_t head_row = blockIdx.x;
  const int64_t row = head_row / rows.shape.heads;
  const int64_t first =
      (row * 2 * rows.shape.heads + head_row % rows.shape.heads) * rows.padded_keys;
  const int64_t of_weights = rows.shape.heads * rows.padded_keys;
  const A scale = static_cast<A>(rows.shape.scale);
  for (int64_t slot = threadIdx.x; slot < rows.padded_keys; slot += kThreads) {
    A weight = 0;
    A gradient = 0;
    if (slot_has_key(rows, row, slot)) {
      weight = exp(scale * products[first + slot] - lse[head_row]);
      gradient = weight * (products[first + of_weights + slot] - delta[head_row]) * scale;
    }
    gradients[first + slot] = narrow_to<T>(gradient);
    gradients[first + of_weights + slot] = narrow_to<T>(weight);
  }
}

__global__ void entry_kernel(SelectedRows rows, int32_t* keys) {
  const int64_t at = grid_thread();
  const int64_t per_row = rows.pools_per_row + 1;
  if (at >= rows.count * per_row) return;
  const int64_t row = at / per_row;
  const int64_t position = slot_position(rows, row, at % per_row * rows.shape.pool_tokens);
  keys[at] = position < 0 ? kNoEntry : static_cast<int32_t>(rows.bases[row] + position);
}

constexpr int kEntries = 8;  // of a block

// A block adds up the pools whose first entry is among its own. A warp has some neighbouring
// channels of one token, and goes through the entries in their order.
template <typename T, int kVector>
__global__ void __launch_bounds__(kThreads)
    add_kernel(SelectedRows rows, int64_t entries, const int32_t* keys, const int64_t* order,
               const T* contributions, void* const* table) {
  using A = Accumulate<T>;
  const int64_t per_row = rows.pools_per_row + 1;
  const int64_t width = rows.shape.width;
  const int64_t columns = (width + kWarp * kVector - 1) / (kWarp * kVector);
  for (int64_t begin = int64_t{blockIdx.x} * kEntries;
       begin < min(entries, (int64_t{blockIdx.x} + 1) * kEntries); ++begin) {
    const int32_t key = keys[begin];
    if (key == kNoEntry) return;  // they stand behind all others
    if (begin > 0 && keys[begin - 1] == key) continue;
    for (int64_t unit = warp_of_block(); unit < rows.shape.pool_tokens * columns; unit += kWarps) {
      const int64_t token = unit / columns;
      const int64_t channel = unit % columns * kWarp * kVector + lane_of_warp() * kVector;
      const bool exists = channel < width;
      A sums[kVector];
      A* row_of_sums = nullptr;
      for (int64_t entry = begin; entry < entries && keys[entry] == key; ++entry) {
        const int64_t row = order[entry] / per_row;
        const int64_t place = order[entry] % per_row;
        if (place == rows.pools_per_row && token >= tail_tokens(rows, row)) continue;
        if (row_of_sums == nullptr) {
          row_of_sums = static_cast<A*>(table[key + token]);
          if (row_of_sums == nullptr) __trap();  // no sum for this latent
          if (exists) load<kVector>(row_of_sums + channel, sums);
        }
        if (!exists) continue;
        A more[kVector];
        load<kVector>(
            contributions +
                (row * rows.padded_keys + place * rows.shape.pool_tokens + token) * width + channel,
            more);
#pragma unroll
        for (int i = 0; i < kVector; ++i) sums[i] += more[i];
      }
      if (row_of_sums != nullptr && exists) store<kVector>(row_of_sums + channel, sums);
    }
  }
}

}  // namespace

void row_table(const LineSegment* segments, int64_t count, int64_t begin, int64_t lines,
               int64_t row_bytes, void** table, Stream stream) {
  launch("row table", table_kernel, divide_up(lines, kThreads), kThreads, stream, segments, count,
         begin, lines, row_bytes, table);
}

void count_pools(const int32_t* pools, int64_t rows, int64_t pools_per_row, int32_t* num_pools,
                 Stream stream) {
  launch("count of pools", count_kernel, divide_up(rows, kWarps), kThreads, stream, pools, rows,
         pools_per_row, num_pools);
}

template <typename T>
void gather_rows(const SelectedRows& rows, void* const* table, T* gathered, Stream stream) {
  const int64_t blocks = divide_up(rows.count * rows.padded_keys, kWarps);
  const int64_t row_bytes = rows.shape.width * static_cast<int64_t>(sizeof(T));
  // Rows of whole 16 bytes begin at such, since tensors do.
  if (row_bytes % 16 == 0) {
    launch("gathering of rows", gather_kernel<uint4>, blocks, kThreads, stream, rows, table,
           row_bytes / 16, reinterpret_cast<uint4*>(gathered));
  } else {
    launch("gathering of rows", gather_kernel<T>, blocks, kThreads, stream, rows, table,
           rows.shape.width, gathered);
  }
}

template <typename T>
void selected_softmax(const SelectedRows& rows, const Accumulate<T>* scores, T* weights,
                      Accumulate<T>* lse, Stream stream) {
  launch("softmax of selected keys", softmax_kernel<T>,
         divide_up(rows.count * rows.shape.heads, kWarps), kThreads, stream, rows, scores, weights,
         lse);
}

template <typename T>
void selected_score_gradient(const SelectedRows& rows, const Accumulate<T>* products,
                             const Accumulate<T>* lse, const Accumulate<T>* delta, T* gradients,
                             Stream stream) {
  launch("gradient of selected scores", score_gradient_kernel<T>, rows.count * rows.shape.heads,
         kThreads, stream, rows, products, lse, delta, gradients);
}

void entry_keys(const SelectedRows& rows, int32_t* keys, Stream stream) {
  launch("keys of entries", entry_kernel, divide_up(rows.count * rows.entries_per_row(), kThreads),
         kThreads, stream, rows, keys);
}

template <typename T>
void add_to_latents(const SelectedRows& rows, const int32_t* keys, const int64_t* order,
                    const T* contributions, void* const* table, Stream stream) {
  const int64_t entries = rows.count * rows.entries_per_row();
  const int64_t blocks = divide_up(entries, kEntries);
  constexpr int kVector = kWide<Accumulate<T>>;
  if (rows.shape.width % kVector == 0) {
    launch("gradients of latents", add_kernel<T, kVector>, blocks, kThreads, stream, rows, entries,
           keys, order, contributions, table);
  } else {
    launch("gradients of latents", add_kernel<T, 1>, blocks, kThreads, stream, rows, entries, keys,
           order, contributions, table);
  }
}

#define LONGSPAN_INSTANTIATE(T)                                                                  \
  template void gather_rows(const SelectedRows&, void* const*, T*, Stream);                      \
  template void selected_softmax(const SelectedRows&, const Accumulate<T>*, T*, Accumulate<T>*,  \
                                 Stream);                                                        \
  template void selected_score_gradient(const SelectedRows&, const Accumulate<T>*,               \
                                        const Accumulate<T>*, const Accumulate<T>*, T*, Stream); \
  template void add_to_latents(const SelectedRows&, const int32_t*, const int64_t*, const T*,    \
                               void* const*, Stream);
LONGSPAN_INSTANTIATE(Bf16)
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan::cuda
