#include "kernels/cuda/cross_entropy.h"

#include "kernels/cuda/launch.cuh"

namespace longspan::cuda {
namespace {

// The sum of exponentials relative to the largest value seen so far.
template <typename A>
struct RunningSum {
  A largest = -INFINITY;
  A sum = 0;

  __device__ void add(A value) {
    if (value > largest) {
      sum *= exp(largest - value);
      largest = value;
    }
    sum += exp(value - largest);
  }
};

// Also reads the target's logit, before anybody overwrites it.
template <typename T, int kVector>
__device__ RunningSum<Accumulate<T>> row_sum(const T* row, int64_t vocabulary) {
  using A = Accumulate<T>;
  __shared__ A shared[kThreads / kWarp];
  RunningSum<A> mine;
  for (int64_t at = threadIdx.x * kVector; at < vocabulary; at += kThreads * kVector) {
    A values[kVector];
    load<kVector>(row + at, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) mine.add(values[i]);
  }
  RunningSum<A> whole;
  whole.largest = block_max(mine.largest, shared);
  // A thread without elements has sum 0; its factor exp(-inf) is 0, never exp(nan).
  const A scaled = mine.sum > 0 ? mine.sum * exp(mine.largest - whole.largest) : mine.sum;
  whole.sum = block_sum(scaled, shared);
  return whole;
}

template <typename A>
__device__ double loss_of(const RunningSum<A>& sum, A target) {
  return log(static_cast<double>(sum.sum)) +
         (static_cast<double>(sum.largest) - static_cast<double>(target));
}

template <typename T, int kVector>
__global__ void losses_kernel(const T* logits, const int32_t* targets, int64_t vocabulary,
                              double* losses) {
  const int64_t row = blockIdx.x;
  const T* values = logits + row * vocabulary;
  const auto sum = row_sum<T, kVector>(values, vocabulary);
  if (threadIdx.x == 0) losses[row] = loss_of(sum, widen(values[targets[row]]));
}

template <typename T, int kVector>
__global__ void gradient_kernel(T* logits, const int32_t* targets, const float* weights,
                                double scale, int64_t vocabulary, double* losses) {
  using A = Accumulate<T>;
  const int64_t row = blockIdx.x;
  T* values = logits + row * vocabulary;
  const int64_t target = targets[row];
  const A target_logit = widen(values[target]);
  const auto sum = row_sum<T, kVector>(values, vocabulary);  // its barriers end all reads above
  const double weight = static_cast<double>(weights[row]) * scale;
  const A factor = static_cast<A>(weight / static_cast<double>(sum.sum));
  for (int64_t at = threadIdx.x * kVector; at < vocabulary; at += kThreads * kVector) {
    A here[kVector];
    load<kVector>(values + at, here);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      here[i] = exp(here[i] - sum.largest) * factor;
      if (at + i == target) here[i] -= static_cast<A>(weight);
    }
    store<kVector>(values + at, here);
  }
  if (threadIdx.x == 0) losses[row] = loss_of(sum, target_logit);
}

__global__ void weighted_sum_kernel(const double* losses, const float* weights, int64_t rows,
                                    double* sum) {
  __shared__ double shared[kThreads / kWarp];
  double mine = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kThreads) {
    const double weight = weights[row];
    if (weight != 0) mine += weight * losses[row];
  }
  const double total = block_sum(mine, shared);
  if (threadIdx.x == 0) *sum += total;
}

template <typename T>
bool is_wide(const T* logits, int64_t vocabulary) {
  return vocabulary % kWide<T> == 0 && is_aligned(logits);
}

}  // namespace

template <typename T>
void cross_entropy_losses(const T* logits, const int32_t* targets, int64_t rows, int64_t vocabulary,
                          double* losses, Stream stream) {
  const bool wide = is_wide(logits, vocabulary);
  launch("cross-entropy", wide ? losses_kernel<T, kWide<T>> : losses_kernel<T, 1>, rows, kThreads,
         stream, logits, targets, vocabulary, losses);
}

template <typename T>
void cross_entropy_gradient(T* logits, const int32_t* targets, const float* weights, double scale,
                            int64_t rows, int64_t vocabulary, double* losses, Stream stream) {
  const bool wide = is_wide(logits, vocabulary);
  launch("cross-entropy gradient", wide ? gradient_kernel<T, kWide<T>> : gradient_kernel<T, 1>,
         rows, kThreads, stream, logits, targets, weights, scale, vocabulary, losses);
}

void add_weighted_losses(const double* losses, const float* weights, int64_t rows, double* sum,
                         Stream stream) {
  if (rows == 0) return;
  launch("weighted losses", weighted_sum_kernel, 1, kThreads, stream, losses, weights, rows, sum);
}

#define LONGSPAN_INSTANTIATE(T)                                                                    \
  template void cross_entropy_losses(const T*, const int32_t*, int64_t, int64_t, double*, Stream); \
  template void cross_entropy_gradient(T*, const int32_t*, const float*, double, int64_t, int64_t, \
                                       double*, Stream);
LONGSPAN_INSTANTIATE(Bf16)
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan::cuda
