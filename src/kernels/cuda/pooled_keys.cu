#include "kernels/cuda/pooled_keys.h"

#include "kernels/cuda/launch.cuh"

namespace longspan::cuda {
namespace {

template <typename T>
__global__ void pool_kernel(const T* keys, const T* gates, int64_t elements, int64_t pool_tokens,
                            int64_t width, T* pooled) {
  using A = Accumulate<T>;
  const int64_t at = grid_thread();
  if (at >= elements) return;
  const int64_t first = at / width * pool_tokens * width + at % width;
  A largest = widen(gates[first]);
  for (int64_t slot = 1; slot < pool_tokens; ++slot) {
    const A gate = widen(gates[first + slot * width]);
    largest = gate > largest ? gate : largest;
  }
  A sum = 0;
  A weighted = 0;
  for (int64_t slot = 0; slot < pool_tokens; ++slot) {
    const A share = exp(widen(gates[first + slot * width]) - largest);
    sum += share;
    weighted += share * widen(keys[first + slot * width]);
  }
  pooled[at] = narrow_to<T>(weighted / sum);
}

}  // namespace

template <typename T>
void pool_keys(const T* keys, const T* gates, int64_t pools, int64_t pool_tokens, int64_t width,
               T* pooled, Stream stream) {
  launch("pooled keys", pool_kernel<T>, divide_up(pools * width, kThreads), kThreads, stream, keys,
         gates, pools * width, pool_tokens, width, pooled);
}

template void pool_keys(const Bf16*, const Bf16*, int64_t, int64_t, int64_t, Bf16*, Stream);
template void pool_keys(const float*, const float*, int64_t, int64_t, int64_t, float*, Stream);
template void pool_keys(const double*, const double*, int64_t, int64_t, int64_t, double*, Stream);

}  // namespace longspan::cuda
