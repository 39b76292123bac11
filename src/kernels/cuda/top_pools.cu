#include "kernels/cuda/top_pools.h"

#include "kernels/cuda/launch.cuh"

namespace longspan::cuda {
namespace {

constexpr int kEntries = 2 * kMostTopPools;  // of a query in shared memory
constexpr int kLoads = 4;                    // scores that a thread reads at a time

// A score and its pool as one key: greater is better, no two pools have equal ones, and zero is
// less than all of them: no entry.
template <typename A>
struct RankKey;

template <>
struct RankKey<float> {
  uint64_t bits;

  __device__ static RankKey none() { return {0}; }
  __device__ static RankKey of(float score, int64_t pool) {
    if (isnan(score)) score = -INFINITY;
    uint32_t ordered = __float_as_uint(score + 0.0f);  // -0 becomes +0
    ordered = (ordered >> 31) != 0 ? ~ordered : ordered | 0x80000000u;
    return {uint64_t{ordered} << 32 | (0xffffffffu - static_cast<uint32_t>(pool))};
  }
  __device__ bool operator>(const RankKey& other) const { return bits > other.bits; }
  __device__ int32_t pool() const {
    return bits == 0 ? -1 : static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(bits));
  }
  __device__ float score() const {
    if (bits == 0) return -INFINITY;
    const auto ordered = static_cast<uint32_t>(bits >> 32);
    return __uint_as_float((ordered >> 31) != 0 ? ordered ^ 0x80000000u : ~ordered);
  }
};

template <>
struct RankKey<double> {
  uint64_t ordered;
  uint64_t place;  // 0: no entry

  __device__ static RankKey none() { return {0, 0}; }
  __device__ static RankKey of(double score, int64_t pool) {
    if (isnan(score)) score = -INFINITY;
    auto bits = static_cast<uint64_t>(__double_as_longlong(score + 0.0));
    bits = (bits >> 63) != 0 ? ~bits : bits | (uint64_t{1} << 63);
    return {bits, 0xffffffffu - static_cast<uint64_t>(pool)};
  }
  __device__ bool operator>(const RankKey& other) const {
    return ordered > other.ordered || (ordered == other.ordered && place > other.place);
  }
  __device__ int32_t pool() const {
    return place == 0 ? -1 : static_cast<int32_t>(0xffffffffu - place);
  }
  __device__ double score() const {
    if (place == 0) return -INFINITY;
    const uint64_t sign = uint64_t{1} << 63;
    return __longlong_as_double(
        static_cast<long long>((ordered & sign) != 0 ? ordered ^ sign : ~ordered));
  }
};

// Sorts entries [0, count) by a whole block of kThreads, the best first; count a power of two.
template <typename Key>
__device__ void sort_entries(Key* entries, int count) {
  for (int run = 2; run <= count; run *= 2) {
    for (int distance = run / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (int idx = static_cast<int>(threadIdx.x); idx < count / 2; idx += kThreads) {
        const int low = idx * 2 - (idx & (distance - 1));
        const int high = low + distance;
        const bool descending = (low & run) == 0;
        const Key a = entries[low];
        const Key b = entries[high];
        if ((b > a) == descending) {
          entries[low] = b;
          entries[high] = a;
        }
      }
    }
  }
  __syncthreads();
}

__device__ inline int power_of_two(int count) {
  int power = 2;
  while (power < count) power *= 2;
  return power;
}

// The entries of one query: its list, and behind it what beats the list's last.
template <typename Key>
struct Entries {
  Key all[kEntries];
  int count;
};

// Sorts all entries; the best `top` stay.
template <typename Key>
__device__ void keep_best(Entries<Key>& entries, int top) {
  const int count = min(entries.count, kEntries);
  const int sorted = power_of_two(count);
  for (int idx = count + static_cast<int>(threadIdx.x); idx < sorted; idx += kThreads) {
    entries.all[idx] = Key::none();
  }
  sort_entries(entries.all, sorted);
  if (threadIdx.x == 0) entries.count = top;
  __syncthreads();
}

template <typename Key, typename A>
__device__ void read_list(const A* scores, const int32_t* pools, int top, Key* entries) {
  for (int idx = static_cast<int>(threadIdx.x); idx < top; idx += kThreads) {
    entries[idx] = pools[idx] < 0 ? Key::none() : Key::of(scores[idx], pools[idx]);
  }
}

template <typename Key, typename A>
__device__ void write_list(const Key* entries, int top, A* scores, int32_t* pools) {
  for (int idx = static_cast<int>(threadIdx.x); idx < top; idx += kThreads) {
    scores[idx] = entries[idx].score();
    pools[idx] = entries[idx].pool();
  }
}

template <typename A>
struct Entering {
  const A* scores;
  int64_t row_stride;
  int64_t first_position;
  int64_t first_pool;
  int64_t pools;
  int64_t pool_tokens;
  int top;
};

template <typename A>
__global__ void __launch_bounds__(kThreads)
    enter_kernel(Entering<A> of, A* list_scores, int32_t* list_pools) {
  using Key = RankKey<A>;
  __shared__ Entries<Key> entries;
  const int64_t query = blockIdx.x;
  const int64_t all_visible = (of.first_position + query + 1) / of.pool_tokens;
  const int64_t visible = min(all_visible - of.first_pool, of.pools);
  if (all_visible <= of.top || visible <= 0) return;
  list_scores += query * of.top;
  list_pools += query * of.top;
  read_list(list_scores, list_pools, of.top, entries.all);
  if (threadIdx.x == 0) entries.count = of.top;
  __syncthreads();
  Key threshold = entries.all[of.top - 1];
  bool changed = false;

  const A* scores = of.scores + query * of.row_stride;
  for (int64_t begin = 0; begin < visible; begin += kThreads * kLoads) {
    Key keys[kLoads];
    bool pending[kLoads];
    bool any = false;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int64_t pool = begin + i * kThreads + threadIdx.x;
      keys[i] = pool < visible ? Key::of(scores[pool], of.first_pool + pool) : Key::none();
      pending[i] = keys[i] > threshold;
      any = any || pending[i];
    }
    // Until all have found a place; the entries are sorted and cut down when they are full.
    while (__syncthreads_or(any)) {
      changed = true;
      any = false;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        if (!pending[i]) continue;
        const int place = atomicAdd(&entries.count, 1);
        pending[i] = place >= kEntries;
        if (!pending[i]) entries.all[place] = keys[i];
      }
      __syncthreads();
      if (entries.count < kEntries) break;
      __syncthreads();
      keep_best(entries, of.top);
      threshold = entries.all[of.top - 1];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        pending[i] = pending[i] && keys[i] > threshold;
        any = any || pending[i];
      }
    }
  }
  if (!changed) return;
  __syncthreads();
  keep_best(entries, of.top);
  write_list(entries.all, of.top, list_scores, list_pools);
}

template <typename A>
__global__ void __launch_bounds__(kThreads)
    merge_kernel(int top, const A* from_scores, const int32_t* from_pools, A* into_scores,
                 int32_t* into_pools) {
  using Key = RankKey<A>;
  __shared__ Entries<Key> entries;
  const int64_t first = int64_t{blockIdx.x} * top;
  if (from_pools[first] < 0) return;
  read_list(into_scores + first, into_pools + first, top, entries.all);
  read_list(from_scores + first, from_pools + first, top, entries.all + top);
  if (threadIdx.x == 0) entries.count = 2 * top;
  __syncthreads();
  keep_best(entries, top);
  write_list(entries.all, top, into_scores + first, into_pools + first);
}

// A list's pools in ascending order; -1 comes last.
struct AscendingPool {
  uint32_t pool;
  __device__ bool operator>(const AscendingPool& other) const { return pool < other.pool; }
};

__global__ void __launch_bounds__(kThreads)
    selected_kernel(int64_t pool_tokens, int top, const int32_t* positions, const int32_t* lists,
                    int64_t width, int32_t* selected) {
  __shared__ AscendingPool pools[kMostTopPools];
  const int64_t row = blockIdx.x;
  const int64_t visible = (positions[row] + int64_t{1}) / pool_tokens;
  selected += row * width;
  if (visible <= top) {
    for (int64_t idx = threadIdx.x; idx < width; idx += kThreads) {
      selected[idx] = idx < visible ? static_cast<int32_t>(idx) : -1;
    }
    return;
  }
  if (lists == nullptr) __trap();  // the caller said that nobody must choose
  const int sorted = power_of_two(top);
  for (int idx = static_cast<int>(threadIdx.x); idx < sorted; idx += kThreads) {
    pools[idx].pool = idx < top ? static_cast<uint32_t>(lists[row * top + idx]) : 0xffffffffu;
  }
  sort_entries(pools, sorted);
  for (int idx = static_cast<int>(threadIdx.x); idx < top; idx += kThreads) {
    if (pools[idx].pool == 0xffffffffu) __trap();  // fewer candidates than the query chooses
    selected[idx] = static_cast<int32_t>(pools[idx].pool);
  }
}

__global__ void mark_kernel(const int32_t* selected, int64_t entries, int64_t width,
                            const int64_t* flag_bases, uint8_t* flags) {
  const int64_t idx = grid_thread();
  if (idx >= entries || selected[idx] < 0) return;
  flags[flag_bases[idx / width] + selected[idx]] = 1;
}

void check_top(int64_t top) {
  LONGSPAN_CHECK(top >= 1 && top <= kMostTopPools, "lists of ", top, " pools, at most ",
                 kMostTopPools);
}

}  // namespace

template <typename A>
void enter_top_pools(const IndexShape& shape, const IndexScoreBlock<A>& block,
                     int64_t first_position, int64_t queries, int64_t first_pool, int64_t pools,
                     const TopPoolLists<A>& lists, Stream stream) {
  check_top(shape.top_pools);
  launch("entering of top pools", enter_kernel<A>, queries, kThreads, stream,
         Entering<A>{block.scores, block.row_stride, first_position, first_pool, pools,
                     shape.pool_tokens, static_cast<int>(shape.top_pools)},
         lists.scores, lists.pools);
}

template <typename A>
void merge_top_pools(const IndexShape& shape, int64_t queries, const TopPoolLists<const A>& from,
                     const TopPoolLists<A>& into, Stream stream) {
  check_top(shape.top_pools);
  launch("merge of top pools", merge_kernel<A>, queries, kThreads, stream,
         static_cast<int>(shape.top_pools), from.scores, from.pools, into.scores, into.pools);
}

void selected_pools(const IndexShape& shape, const int32_t* positions, int64_t rows,
                    const int32_t* lists, int64_t width, int32_t* selected, Stream stream) {
  if (lists != nullptr) {
    check_top(shape.top_pools);
    LONGSPAN_CHECK(width == shape.top_pools, width, " selected pools of lists of ",
                   shape.top_pools);
  }
  launch("selected pools", selected_kernel, rows, kThreads, stream, shape.pool_tokens,
         static_cast<int>(shape.top_pools), positions, lists, width, selected);
}

void mark_selected_pools(const int32_t* selected, int64_t rows, int64_t width,
                         const int64_t* flag_bases, uint8_t* flags, Stream stream) {
  launch("marks of selected pools", mark_kernel, divide_up(rows * width, kThreads), kThreads,
         stream, selected, rows * width, width, flag_bases, flags);
}

#define LONGSPAN_INSTANTIATE(A)                                                                 \
  template void enter_top_pools(const IndexShape&, const IndexScoreBlock<A>&, int64_t, int64_t, \
                                int64_t, int64_t, const TopPoolLists<A>&, Stream);              \
  template void merge_top_pools(const IndexShape&, int64_t, const TopPoolLists<const A>&,       \
                                const TopPoolLists<A>&, Stream);
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan::cuda
