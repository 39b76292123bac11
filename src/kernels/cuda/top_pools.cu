#include "kernels/cuda/top_pools.h"

#include "kernels/cuda/launch.cuh"

namespace longspan::cuda {
namespace {

constexpr int kEntries = 2 * kMostTopPools;  // of a query in shared memory
constexpr int kLoads = 4;                    // scores that a thread reads at a time
constexpr int kBins = kThreads;
constexpr int kOwn = kEntries / kThreads;  // entries of a thread

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
  // The greatest key whose coarse rank is below.
  __device__ static RankKey below(uint32_t coarse) { return {(uint64_t{coarse} << 32) - 1}; }
  __device__ uint32_t coarse() const { return static_cast<uint32_t>(bits >> 32); }
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
  __device__ static RankKey below(uint32_t coarse) {
    return {(uint64_t{coarse} << 32) - 1, ~uint64_t{0}};
  }
  __device__ uint32_t coarse() const { return static_cast<uint32_t>(ordered >> 32); }
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

// The candidates of one query: all that might be among its best.
template <typename Key>
struct Entries {
  Key all[kEntries];
  int count;
  // Of keep_likely().
  int bins[kBins];
  uint32_t extremes[2][kThreads / kWarp];
  uint32_t cut;
};

// Sorts all entries; the best `top` stay.
template <typename Key>
__device__ void keep_best(Entries<Key>& entries, int top) {
  const int count = min(entries.count, kEntries);
  const int sorted = power_of_two(max(count, top));
  for (int idx = count + static_cast<int>(threadIdx.x); idx < sorted; idx += kThreads) {
    entries.all[idx] = Key::none();
  }
  sort_entries(entries.all, sorted);
  if (threadIdx.x == 0) entries.count = top;
  __syncthreads();
}

// The lowest and the highest coarse rank of all threads' entries.
template <typename Key>
__device__ void find_extremes(Entries<Key>& entries, uint32_t* low, uint32_t* high) {
  *low = __reduce_min_sync(0xffffffffu, *low);
  *high = __reduce_max_sync(0xffffffffu, *high);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (threadIdx.x % kWarp == 0) {
    entries.extremes[0][warp] = *low;
    entries.extremes[1][warp] = *high;
  }
  __syncthreads();
  for (int idx = 0; idx < kThreads / kWarp; ++idx) {
    *low = min(*low, entries.extremes[0][idx]);
    *high = max(*high, entries.extremes[1][idx]);
  }
}

// bins[i] becomes the number of entries in bin i and above.
template <typename Key>
__device__ void sum_bins(Entries<Key>& entries) {
  const int bin = kBins - 1 - static_cast<int>(threadIdx.x);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  int sum = entries.bins[bin];
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int below = __shfl_up_sync(0xffffffffu, sum, static_cast<unsigned>(distance));
    if (lane >= distance) sum += below;
  }
  if (lane == kWarp - 1) entries.extremes[0][warp] = static_cast<uint32_t>(sum);
  __syncthreads();
  for (int idx = 0; idx < warp; ++idx) sum += static_cast<int>(entries.extremes[0][idx]);
  entries.bins[bin] = sum;
  __syncthreads();
}

// Drops entries that at least `top` others surely beat: those in the bins below the one that holds
// the last of the best. Returns the new threshold. The entries stay unsorted; where too many are
// left, as among equal scores, they are sorted after all.
template <typename Key>
__device__ Key keep_likely(Entries<Key>& entries, int top) {
  const int count = min(entries.count, kEntries);
  Key own[kOwn];
  uint32_t low = 0xffffffffu;
  uint32_t high = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int idx = i * kThreads + static_cast<int>(threadIdx.x);
    own[i] = idx < count ? entries.all[idx] : Key::none();
    if (idx < count) {
      low = min(low, own[i].coarse());
      high = max(high, own[i].coarse());
    }
  }
  entries.bins[threadIdx.x] = 0;
  find_extremes(entries, &low, &high);  // with a barrier
  const int shift = max(0, 32 - __clz(static_cast<int>(high - low)) - 8);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const bool exists = i * kThreads + static_cast<int>(threadIdx.x) < count;
    if (exists) atomicAdd(&entries.bins[(own[i].coarse() - low) >> shift], 1);
  }
  __syncthreads();
  sum_bins(entries);
  const int bin = static_cast<int>(threadIdx.x);
  if (entries.bins[bin] >= top && (bin == kBins - 1 || entries.bins[bin + 1] < top)) {
    entries.cut = low + (static_cast<uint32_t>(bin) << shift);
    entries.count = 0;
  }
  __syncthreads();
  const uint32_t cut = entries.cut;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {  // none is below every cut
    if (own[i].coarse() >= cut) entries.all[atomicAdd(&entries.count, 1)] = own[i];
  }
  __syncthreads();
  if (entries.count <= kEntries * 3 / 4) return Key::below(cut);
  __syncthreads();
  keep_best(entries, top);
  return entries.all[top - 1];
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

// What a block keeps of a query between calls.
template <typename Key>
struct Candidates {
  Key all[kEntries];
  Key threshold;
  int64_t count;
};

template <typename A>
struct Entering {
  const A* scores;
  int64_t row_stride;
  EnteringRows rows;
  int64_t pool_tokens;
  int top;
  bool first;
  bool last;
};

// The list, or the candidates of the call before; returns the threshold.
template <typename Key, typename A>
__device__ Key begin_entering(Entries<Key>& entries, const Entering<A>& of, const A* list_scores,
                              const int32_t* list_pools, const Candidates<Key>& candidates) {
  if (!of.first) {
    const auto count = static_cast<int>(candidates.count);
    for (int idx = static_cast<int>(threadIdx.x); idx < count; idx += kThreads) {
      entries.all[idx] = candidates.all[idx];
    }
    if (threadIdx.x == 0) entries.count = count;
    __syncthreads();
    return candidates.threshold;
  }
  int listed = 0;
  for (int begin = 0; begin < of.top; begin += kThreads) {
    const int idx = begin + static_cast<int>(threadIdx.x);
    listed += __syncthreads_count(idx < of.top && list_pools[idx] >= 0);
  }
  read_list(list_scores, list_pools, of.top, entries.all);
  if (threadIdx.x == 0) entries.count = listed;
  __syncthreads();
  return listed < of.top ? Key::none() : entries.all[of.top - 1];
}

// Writes the list, or keeps the candidates for the next call.
template <typename Key, typename A>
__device__ void end_entering(Entries<Key>& entries, const Entering<A>& of, const Key& threshold,
                             A* list_scores, int32_t* list_pools, Candidates<Key>& candidates) {
  if (!of.last) {
    for (int idx = static_cast<int>(threadIdx.x); idx < entries.count; idx += kThreads) {
      candidates.all[idx] = entries.all[idx];
    }
    if (threadIdx.x == 0) {
      candidates.threshold = threshold;
      candidates.count = entries.count;
    }
    return;
  }
  if (entries.count > kEntries / 2) keep_likely(entries, of.top);
  keep_best(entries, of.top);
  write_list(entries.all, of.top, list_scores, list_pools);
}

template <typename A>
__global__ void __launch_bounds__(kThreads)
    enter_kernel(Entering<A> of, A* list_scores, int32_t* list_pools,
                 Candidates<RankKey<A>>* all_candidates) {
  using Key = RankKey<A>;
  constexpr int kVector = kWide<A>;
  constexpr int kVectors = kLoads / kVector;
  __shared__ Entries<Key> entries;
  const int64_t query = blockIdx.x;
  const int64_t all_visible = (of.rows.first_position + query + 1) / of.pool_tokens;
  const int64_t visible = min(all_visible - of.rows.first_pool, of.rows.pools);
  if (all_visible <= of.top || (of.first && of.last && visible <= 0)) return;
  list_scores += query * of.top;
  list_pools += query * of.top;
  Candidates<Key>& candidates = all_candidates[query];
  Key threshold = begin_entering(entries, of, list_scores, list_pools, candidates);

  const A* scores = of.scores + query * of.row_stride;
  const auto load_scores = [&](int64_t begin, A(&values)[kLoads]) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int64_t pool = begin + (i * kThreads + threadIdx.x) * kVector;
      if (pool < visible) load<kVector>(scores + pool, values + i * kVector);
    }
  };
  A values[kLoads];
  load_scores(0, values);
  for (int64_t begin = 0; begin < visible; begin += kThreads * kLoads) {
    A next[kLoads];
    load_scores(begin + kThreads * kLoads, next);
    Key keys[kLoads];
    bool pending[kLoads];
    bool any = false;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int64_t pool = begin + (i / kVector * kThreads + threadIdx.x) * kVector + i % kVector;
      keys[i] = pool < visible ? Key::of(values[i], of.rows.first_pool + pool) : Key::none();
      pending[i] = keys[i] > threshold;
      any = any || pending[i];
      values[i] = next[i];
    }
    // Until all have found a place; entries are dropped when it is full.
    while (__syncthreads_or(any)) {
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
      threshold = keep_likely(entries, of.top);
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        pending[i] = pending[i] && keys[i] > threshold;
        any = any || pending[i];
      }
    }
  }
  __syncthreads();
  end_entering(entries, of, threshold, list_scores, list_pools, candidates);
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
int64_t candidate_bytes() {
  return static_cast<int64_t>(sizeof(Candidates<RankKey<A>>));
}

template <typename A>
void enter_top_pools(const IndexShape& shape, const IndexScoreBlock<A>& block,
                     const EnteringRows& rows, const TopPoolLists<A>& lists, void* candidates,
                     const EnteringTurn& turn, Stream stream) {
  check_top(shape.top_pools);
  LONGSPAN_CHECK(
      is_aligned(block.scores) && block.row_stride * static_cast<int64_t>(sizeof(A)) % 16 == 0,
      "rows of scores ", block.row_stride, " apart");
  launch("entering of top pools", enter_kernel<A>, rows.queries, kThreads, stream,
         Entering<A>{block.scores, block.row_stride, rows, shape.pool_tokens,
                     static_cast<int>(shape.top_pools), turn.first, turn.last},
         lists.scores, lists.pools, static_cast<Candidates<RankKey<A>>*>(candidates));
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

#define LONGSPAN_INSTANTIATE(A)                                                                    \
  template int64_t candidate_bytes<A>();                                                           \
  template void enter_top_pools(const IndexShape&, const IndexScoreBlock<A>&, const EnteringRows&, \
                                const TopPoolLists<A>&, void*, const EnteringTurn&, Stream);       \
  template void merge_top_pools(const IndexShape&, int64_t, const TopPoolLists<const A>&,          \
                                const TopPoolLists<A>&, Stream);
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan::cuda
