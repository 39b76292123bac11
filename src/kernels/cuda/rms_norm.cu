#include "kernels/cuda/rms_norm.h"

#include "kernels/cuda/partial_sums.cuh"

namespace longspan::cuda {
namespace {

constexpr int kGroupRows = 32;  // rows whose weight gradients one group of threads sums
constexpr int kMaxItems = 8;    // vectors of a row that one thread holds

// kLanes threads share a row: a warp, or the whole block.
template <int kLanes, typename A>
__device__ A row_sum(A value, A* shared) {
  if constexpr (kLanes == kWarp) {
    return warp_sum(value);
  } else {
    return block_sum(value, shared);
  }
}

template <typename T, int kVector, int kItems, int kLanes>
__global__ void forward_kernel(const T* x, const T* weight, Accumulate<T> epsilon, int64_t rows,
                               int64_t width, T* y, Accumulate<T>* inverse_rms) {
  using A = Accumulate<T>;
  __shared__ A shared[kThreads / kWarp];
  constexpr int kRows = kThreads / kLanes;
  const int64_t row = int64_t{blockIdx.x} * kRows + static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  if (row >= rows) return;
  A values[kItems][kVector];
  A squares = 0;
#pragma unroll
  for (int item = 0; item < kItems; ++item) {
    const int64_t at = (int64_t{item} * kLanes + lane) * kVector;
    if (at >= width) break;
    load<kVector>(x + row * width + at, values[item]);
#pragma unroll
    for (int i = 0; i < kVector; ++i) squares += values[item][i] * values[item][i];
  }
  const A mean = row_sum<kLanes>(squares, shared) / static_cast<A>(width);
  const A scale = A{1} / sqrt(mean + epsilon);
#pragma unroll
  for (int item = 0; item < kItems; ++item) {
    const int64_t at = (int64_t{item} * kLanes + lane) * kVector;
    if (at >= width) break;
    A gains[kVector];
    load<kVector>(weight + at, gains);
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[item][i] = values[item][i] * scale * gains[i];
    store<kVector>(y + row * width + at, values[item]);
  }
  if (lane == 0) inverse_rms[row] = scale;
}

template <typename T, int kVector, int kItems, int kLanes>
__global__ void backward_kernel(const T* x, const T* weight, const Accumulate<T>* inverse_rms,
                                const T* dy, int64_t rows, int64_t width, T* dx, T* y,
                                Accumulate<T>* partials) {
  using A = Accumulate<T>;
  __shared__ A shared[kThreads / kWarp];
  constexpr int kRows = kThreads / kLanes;
  const int64_t group = int64_t{blockIdx.x} * kRows + static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t row_end = min(rows, (group + 1) * kGroupRows);
  A sums[kItems][kVector] = {};
  for (int64_t row = group * kGroupRows; row < row_end; ++row) {
    const A scale = inverse_rms[row];
    A in[kItems][kVector];
    A gradient[kItems][kVector];  // dy times weight
    A dot = 0;
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const int64_t at = (int64_t{item} * kLanes + lane) * kVector;
      if (at >= width) break;
      A gains[kVector];
      load<kVector>(weight + at, gains);
      load<kVector>(x + row * width + at, in[item]);
      load<kVector>(dy + row * width + at, gradient[item]);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        sums[item][i] += gradient[item][i] * (in[item][i] * scale);
        gradient[item][i] *= gains[i];
        dot += gradient[item][i] * in[item][i];
      }
      if (y != nullptr) {
        A again[kVector];
#pragma unroll
        for (int i = 0; i < kVector; ++i) again[i] = in[item][i] * scale * gains[i];
        store<kVector>(y + row * width + at, again);
      }
    }
    const A pull = row_sum<kLanes>(dot, shared) * scale * scale / static_cast<A>(width);
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const int64_t at = (int64_t{item} * kLanes + lane) * kVector;
      if (at >= width) break;
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        gradient[item][i] = scale * (gradient[item][i] - pull * in[item][i]);
      }
      store<kVector>(dx + row * width + at, gradient[item]);
    }
  }
#pragma unroll
  for (int item = 0; item < kItems; ++item) {
    const int64_t at = (int64_t{item} * kLanes + lane) * kVector;
    if (at >= width) break;
#pragma unroll
    for (int i = 0; i < kVector; ++i) partials[group * width + at + i] = sums[item][i];
  }
}

// How a row is spread over threads.
struct Spread {
  bool wide = false;  // 16-byte accesses
  int lanes = kWarp;
  int items = 1;
};

// `aligned`: all arrays begin at 16 bytes.
template <typename T>
Spread spread_of(int64_t width, bool aligned) {
  Spread spread;
  spread.wide = aligned && width % kWide<T> == 0;
  const int64_t vectors = spread.wide ? width / kWide<T> : width;
  spread.lanes = vectors <= kWarp ? kWarp : kThreads;
  while (int64_t{spread.items} * spread.lanes < vectors) spread.items *= 2;
  return spread;
}

// Calls function<kVector, kItems, kLanes>() for the spread.
template <typename T, typename Function>
void for_spread(const Spread& spread, const Function& function) {
  const auto of_items = [&]<int kVector, int kLanes>() {
    switch (spread.items) {
      case 1:
        return function.template operator()<kVector, 1, kLanes>();
      case 2:
        return function.template operator()<kVector, 2, kLanes>();
      case 4:
        return function.template operator()<kVector, 4, kLanes>();
      default:
        return function.template operator()<kVector, kMaxItems, kLanes>();
    }
  };
  if (spread.lanes == kWarp) {
    if (spread.wide) return function.template operator()<kWide<T>, 1, kWarp>();
    return function.template operator()<1, 1, kWarp>();
  }
  if (spread.wide) return of_items.template operator()<kWide<T>, kThreads>();
  return of_items.template operator()<1, kThreads>();
}

// As many as a launch has, however its rows are spread.
int64_t row_groups(int64_t rows, const Spread& spread) {
  const int per_block = kThreads / spread.lanes;
  return divide_up(divide_up(rows, kGroupRows), per_block) * per_block;
}

}  // namespace

template <typename T>
const char* rms_norm_refusal(int64_t width) {
  return spread_of<T>(width, true).items <= kMaxItems ? ""
                                                      : "rows do not fit into a block's registers";
}

template <typename T>
void rms_norm_forward(const T* x, const T* weight, double epsilon, int64_t rows, int64_t width,
                      T* y, Accumulate<T>* inverse_rms, Stream stream) {
  const Spread spread = spread_of<T>(width, is_aligned(x) && is_aligned(weight) && is_aligned(y));
  LONGSPAN_CHECK(spread.items <= kMaxItems, "RMSNorm on rows of ", width);
  for_spread<T>(spread, [&]<int kVector, int kItems, int kLanes>() {
    launch("RMSNorm forward", forward_kernel<T, kVector, kItems, kLanes>,
           divide_up(rows, kThreads / kLanes), kThreads, stream, x, weight, epsilon, rows, width, y,
           inverse_rms);
  });
}

template <typename T>
int64_t rms_norm_partials(int64_t rows, int64_t width) {
  return row_groups(rows, {.lanes = kWarp}) * width;
}

template <typename T>
void rms_norm_backward(const T* x, const T* weight, const Accumulate<T>* inverse_rms, const T* dy,
                       int64_t rows, int64_t width, T* dx, T* y, Accumulate<T>* partials,
                       Accumulate<T>* weight_gradient, Stream stream) {
  const Spread spread = spread_of<T>(width, is_aligned(x) && is_aligned(weight) && is_aligned(dy) &&
                                                is_aligned(dx) && is_aligned(y));
  LONGSPAN_CHECK(spread.items <= kMaxItems, "RMSNorm on rows of ", width);
  const int64_t groups = row_groups(rows, spread);
  for_spread<T>(spread, [&]<int kVector, int kItems, int kLanes>() {
    launch("RMSNorm backward", backward_kernel<T, kVector, kItems, kLanes>,
           groups / (kThreads / kLanes), kThreads, stream, x, weight, inverse_rms, dy, rows, width,
           dx, y, partials);
  });
  if (rows == 0) return;
  add_partials("sum of RMSNorm's partial gradients", partials, groups, width, weight_gradient,
               stream);
}

#define LONGSPAN_INSTANTIATE(T)                                                                    \
  template const char* rms_norm_refusal<T>(int64_t);                                               \
  template void rms_norm_forward(const T*, const T*, double, int64_t, int64_t, T*, Accumulate<T>*, \
                                 Stream);                                                          \
  template int64_t rms_norm_partials<T>(int64_t, int64_t);                                         \
  template void rms_norm_backward(const T*, const T*, const Accumulate<T>*, const T*, int64_t,     \
                                  int64_t, T*, T*, Accumulate<T>*, Accumulate<T>*, Stream);
LONGSPAN_INSTANTIATE(Bf16)
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan::cuda
