#include "kernels/cuda/rope.h"

#include "kernels/cuda/launch.cuh"

namespace longspan::cuda {
namespace {

template <typename Real>
__global__ void table_kernel(const float* inverse_frequencies, int64_t half, Real scaling,
                             const int64_t* positions, int64_t tokens, Real* cosines, Real* sines) {
  const int64_t at = grid_thread();
  if (at >= tokens * half) return;
  const float angle = static_cast<float>(positions[at / half]) * inverse_frequencies[at % half];
  cosines[at] = cos(static_cast<Real>(angle)) * scaling;
  sines[at] = sin(static_cast<Real>(angle)) * scaling;
}

// A thread turns kVector pairs of one head.
template <typename T, int kVector>
__global__ void rotate_kernel(const T* q, const Accumulate<T>* cosines, const Accumulate<T>* sines,
                              int64_t vectors, int64_t heads, int64_t half, Accumulate<T> sign,
                              T* rotated) {
  using A = Accumulate<T>;
  const int64_t at = grid_thread();
  if (at >= vectors) return;
  const int64_t per_head = half / kVector;
  const int64_t head_row = at / per_head;  // token * heads + head
  const int64_t column = at % per_head * kVector;
  const int64_t table_at = head_row / heads * half + column;
  const int64_t low_at = head_row * 2 * half + column;
  A low[kVector];
  A high[kVector];
  load<kVector>(q + low_at, low);
  load<kVector>(q + low_at + half, high);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const A cosine = cosines[table_at + i];
    const A turn = sign * sines[table_at + i];
    const A before = low[i];
    low[i] = before * cosine - high[i] * turn;
    high[i] = high[i] * cosine + before * turn;
  }
  store<kVector>(rotated + low_at, low);
  store<kVector>(rotated + low_at + half, high);
}

template <typename T, int kVector>
void rotate(const T* q, const Accumulate<T>* cosines, const Accumulate<T>* sines, int64_t tokens,
            int64_t heads, int64_t half, int direction, T* rotated, Stream stream) {
  const int64_t vectors = tokens * heads * half / kVector;
  launch("rope", rotate_kernel<T, kVector>, divide_up(vectors, kThreads), kThreads, stream, q,
         cosines, sines, vectors, heads, half, direction, rotated);
}

}  // namespace

template <typename Real>
void rope_table(const float* inverse_frequencies, int64_t half, double scaling,
                const int64_t* positions, int64_t tokens, Real* cosines, Real* sines,
                Stream stream) {
  launch("rope table", table_kernel<Real>, divide_up(tokens * half, kThreads), kThreads, stream,
         inverse_frequencies, half, scaling, positions, tokens, cosines, sines);
}

template <typename T>
void rope_rotate(const T* q, const Accumulate<T>* cosines, const Accumulate<T>* sines,
                 int64_t tokens, int64_t heads, int64_t width, int direction, T* rotated,
                 Stream stream) {
  const int64_t half = width / 2;
  const bool wide = half % kWide<T> == 0 && is_aligned(q) && is_aligned(rotated);
  const auto run = wide ? &rotate<T, kWide<T>> : &rotate<T, 1>;
  run(q, cosines, sines, tokens, heads, half, direction, rotated, stream);
}

template void rope_table(const float*, int64_t, double, const int64_t*, int64_t, float*, float*,
                         Stream);
template void rope_table(const float*, int64_t, double, const int64_t*, int64_t, double*, double*,
                         Stream);
#define LONGSPAN_INSTANTIATE(T)                                                            \
  template void rope_rotate(const T*, const Accumulate<T>*, const Accumulate<T>*, int64_t, \
                            int64_t, int64_t, int, T*, Stream);
LONGSPAN_INSTANTIATE(Bf16)
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan::cuda
