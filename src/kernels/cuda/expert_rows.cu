#include "kernels/cuda/expert_rows.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/swiglu_element.cuh"

namespace longspan::cuda {
namespace {

template <typename T, int kVector>
__global__ void gather_kernel(const T* source, const int64_t* places, int64_t vectors,
                              int64_t row_vectors, T* packed) {
  using Vector = Packed<kVector, T>;
  const int64_t at = grid_thread();
  if (at >= vectors) return;
  const int64_t row = at / row_vectors;
  const int64_t column = at % row_vectors;
  reinterpret_cast<Vector*>(packed)[at] =
      reinterpret_cast<const Vector*>(source)[places[row] * row_vectors + column];
}

template <typename T, int kVector>
__global__ void add_kernel(const T* packed, const int64_t* places, int64_t vectors,
                           int64_t row_vectors, Accumulate<T>* sum) {
  using A = Accumulate<T>;
  const int64_t index = grid_thread();
  if (index >= vectors) return;
  const int64_t row = index / row_vectors;
  const int64_t column = index % row_vectors;
  A more[kVector];
  A sums[kVector];
  load<kVector>(packed + index * kVector, more);
  A* to = sum + (places[row] * row_vectors + column) * kVector;
  load<kVector>(to, sums);
#pragma unroll
  for (int i = 0; i < kVector; ++i) sums[i] += more[i];
  store<kVector>(to, sums);
}

template <typename T, int kVector>
__global__ void combine_kernel(CombinedRows<T> from, RowPlaces at, const Accumulate<T>* weights,
                               int64_t vectors, int64_t row_vectors, T* y) {
  using A = Accumulate<T>;
  const int64_t index = grid_thread();
  if (index >= vectors) return;
  const int64_t row = index / row_vectors;
  const int64_t column = index % row_vectors * kVector;
  const int64_t width = row_vectors * kVector;
  A sums[kVector] = {};
  const int64_t end = at.begins[row + 1];
#pragma unroll 2
  for (int64_t idx = at.begins[row]; idx < end; ++idx) {
    const int64_t place = at.places[idx];
    const A weight = weights != nullptr ? weights[place] : A{1};
    A values[kVector];
    load<kVector>(from.first + place * width + column, values);
    if (from.second != nullptr) {
      A more[kVector];
      load<kVector>(from.second + place * width + column, more);
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] += more[i];
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) sums[i] += weight * values[i];
  }
  store<kVector>(y + index * kVector, sums);
}

template <typename T, int kVector>
__global__ void weighted_swiglu_kernel(WeightedSwiglu<T> arrays, Accumulate<T> limit,
                                       int64_t width) {
  using A = Accumulate<T>;
  __shared__ A words[kThreads / kWarp];
  const int64_t row = blockIdx.x;
  const A weight = arrays.weights[row];
  A dot = 0;
  for (int64_t column = threadIdx.x * kVector; column < width; column += kThreads * kVector) {
    const int64_t at = row * width + column;
    A gates[kVector];
    A ups[kVector];
    A outer[kVector];
    load<kVector>(arrays.gate + at, gates);
    load<kVector>(arrays.up + at, ups);
    load<kVector>(arrays.da + at, outer);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const SwigluParts<A> parts = swiglu_backward_of(gates[i], ups[i], weight * outer[i], limit);
      dot += outer[i] * parts.y;
      gates[i] = parts.dgate;
      ups[i] = parts.dup;
      outer[i] = weight * parts.y;
    }
    store<kVector>(arrays.a_weighted + at, outer);
    store<kVector>(arrays.dgate + at, gates);
    store<kVector>(arrays.dup + at, ups);
  }
  dot = block_sum(dot, words);
  if (threadIdx.x == 0) arrays.dots[arrays.places[row]] = dot;
}

}  // namespace

template <typename T>
void gather_rows(const T* source, const int64_t* places, int64_t rows, int64_t width, T* packed,
                 Stream stream) {
  const bool wide = width % kWide<T> == 0 && is_aligned(source) && is_aligned(packed);
  const int64_t row_vectors = wide ? width / kWide<T> : width;
  launch("gather of expert rows", wide ? gather_kernel<T, kWide<T>> : gather_kernel<T, 1>,
         divide_up(rows * row_vectors, kThreads), kThreads, stream, source, places,
         rows * row_vectors, row_vectors, packed);
}

template <typename T>
void add_rows(const T* packed, const int64_t* places, int64_t rows, int64_t width,
              Accumulate<T>* sum, Stream stream) {
  constexpr int kVector = kWide<Accumulate<T>>;
  const bool wide = width % kVector == 0 && is_aligned(packed) && is_aligned(sum);
  const int64_t row_vectors = wide ? width / kVector : width;
  launch("addition of expert rows", wide ? add_kernel<T, kVector> : add_kernel<T, 1>,
         divide_up(rows * row_vectors, kThreads), kThreads, stream, packed, places,
         rows * row_vectors, row_vectors, sum);
}

template <typename T>
void combine_rows(const CombinedRows<T>& from, const RowPlaces& at, const Accumulate<T>* weights,
                  int64_t rows, int64_t width, T* y, Stream stream) {
  const bool wide =
      width % kWide<T> == 0 && is_aligned(from.first) && is_aligned(from.second) && is_aligned(y);
  const int64_t row_vectors = wide ? width / kWide<T> : width;
  launch("combination of expert rows", wide ? combine_kernel<T, kWide<T>> : combine_kernel<T, 1>,
         divide_up(rows * row_vectors, kThreads), kThreads, stream, from, at, weights,
         rows * row_vectors, row_vectors, y);
}

template <typename T>
void weighted_swiglu_backward(const WeightedSwiglu<T>& arrays, double limit, int64_t rows,
                              int64_t width, Stream stream) {
  bool wide = width % kWide<T> == 0;
  const T* const all[] = {arrays.gate,  arrays.up,  arrays.da,
                          arrays.dgate, arrays.dup, arrays.a_weighted};
  for (const T* array : all) wide = wide && is_aligned(array);
  launch("weighted SwiGLU backward",
         wide ? weighted_swiglu_kernel<T, kWide<T>> : weighted_swiglu_kernel<T, 1>, rows, kThreads,
         stream, arrays, limit, width);
}

#define LONGSPAN_INSTANTIATE(T)                                                               \
  template void gather_rows(const T*, const int64_t*, int64_t, int64_t, T*, Stream);          \
  template void add_rows(const T*, const int64_t*, int64_t, int64_t, Accumulate<T>*, Stream); \
  template void combine_rows(const CombinedRows<T>&, const RowPlaces&, const Accumulate<T>*,  \
                             int64_t, int64_t, T*, Stream);                                   \
  template void weighted_swiglu_backward(const WeightedSwiglu<T>&, double, int64_t, int64_t,  \
                                         Stream);
LONGSPAN_INSTANTIATE(Bf16)
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan::cuda
