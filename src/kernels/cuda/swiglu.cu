#include "kernels/cuda/swiglu.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/swiglu_element.cuh"

namespace longspan::cuda {
namespace {

template <typename T, int kVector>
__global__ void forward_kernel(const T* gate, const T* up, Accumulate<T> limit, int64_t vectors,
                               T* y) {
  using A = Accumulate<T>;
  const int64_t at = grid_thread() * kVector;
  if (at >= vectors * kVector) return;
  A gates[kVector];
  A ups[kVector];
  load<kVector>(gate + at, gates);
  load<kVector>(up + at, ups);
#pragma unroll
  for (int i = 0; i < kVector; ++i) ups[i] = swiglu_of(gates[i], ups[i], limit);
  store<kVector>(y + at, ups);
}

template <typename T, int kVector>
__global__ void backward_kernel(const T* gate, const T* up, Accumulate<T> limit, const T* dy,
                                int64_t vectors, T* y, T* dgate, T* dup) {
  using A = Accumulate<T>;
  const int64_t at = grid_thread() * kVector;
  if (at >= vectors * kVector) return;
  A gates[kVector];
  A ups[kVector];
  A gradients[kVector];
  load<kVector>(gate + at, gates);
  load<kVector>(up + at, ups);
  load<kVector>(dy + at, gradients);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const SwigluParts<A> parts = swiglu_backward_of(gates[i], ups[i], gradients[i], limit);
    ups[i] = parts.y;
    gates[i] = parts.dgate;
    gradients[i] = parts.dup;
  }
  store<kVector>(y + at, ups);
  store<kVector>(dgate + at, gates);
  store<kVector>(dup + at, gradients);
}

}  // namespace

template <typename T>
void swiglu_forward(const T* gate, const T* up, double limit, int64_t elements, T* y,
                    Stream stream) {
  const bool wide = elements % kWide<T> == 0 && is_aligned(gate) && is_aligned(up) && is_aligned(y);
  const int64_t vectors = wide ? elements / kWide<T> : elements;
  launch("SwiGLU forward", wide ? forward_kernel<T, kWide<T>> : forward_kernel<T, 1>,
         divide_up(vectors, kThreads), kThreads, stream, gate, up, limit, vectors, y);
}

template <typename T>
void swiglu_backward(const T* gate, const T* up, double limit, const T* dy, int64_t elements, T* y,
                     T* dgate, T* dup, Stream stream) {
  bool wide = elements % kWide<T> == 0;
  for (const T* array : {gate, up, dy, static_cast<const T*>(y), static_cast<const T*>(dgate),
                         static_cast<const T*>(dup)}) {
    wide = wide && is_aligned(array);
  }
  const int64_t vectors = wide ? elements / kWide<T> : elements;
  launch("SwiGLU backward", wide ? backward_kernel<T, kWide<T>> : backward_kernel<T, 1>,
         divide_up(vectors, kThreads), kThreads, stream, gate, up, limit, dy, vectors, y, dgate,
         dup);
}

#define LONGSPAN_INSTANTIATE(T)                                                  \
  template void swiglu_forward(const T*, const T*, double, int64_t, T*, Stream); \
  template void swiglu_backward(const T*, const T*, double, const T*, int64_t, T*, T*, T*, Stream);
LONGSPAN_INSTANTIATE(Bf16)
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan::cuda
