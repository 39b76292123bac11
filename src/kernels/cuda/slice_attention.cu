#include "kernels/cuda/slice_attention.h"

#include "kernels/cuda/launch.cuh"

namespace longspan::cuda {
namespace {

constexpr int kColumns = kSliceAttentionMaxWidth / kWarp;  // of a head that one lane holds

struct Shape {
  int64_t heads;
  int64_t key_heads;
  int64_t width;
  double scale;

  __device__ int64_t group() const { return heads / key_heads; }
};

__device__ int64_t warp_index() {
  return grid_thread() / kWarp;
}

__device__ int64_t lane_index() {
  return threadIdx.x % kWarp;
}

__device__ int64_t visible_keys(const AttentionTile& tile, int64_t row) {
  const int64_t visible = row + tile.diagonal + 1;
  return visible < 0 ? 0 : visible > tile.key_rows ? tile.key_rows : visible;
}

// The head's columns of the calling lane; zero past the end.
template <typename T>
__device__ void load_head(const T* head, int64_t width, Accumulate<T>* columns) {
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int64_t column = lane_index() + int64_t{i} * kWarp;
    columns[i] = column < width ? widen(head[column]) : Accumulate<T>{0};
  }
}

template <typename A>
__device__ A dot(const A* a, const A* b) {
  A sum = 0;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) sum += a[i] * b[i];
  return warp_sum(sum);
}

template <typename A>
__device__ void add_head(A* head, int64_t width, const A* columns) {
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int64_t column = lane_index() + int64_t{i} * kWarp;
    if (column < width) head[column] += columns[i];
  }
}

template <typename T>
__global__ void forward_kernel(AttentionTile tile, Shape shape, SliceInputs<T> in, Accumulate<T>* o,
                               Accumulate<T>* lse) {
  using A = Accumulate<T>;
  const int64_t at = warp_index();
  if (at >= tile.query_rows * shape.heads) return;
  const int64_t row = at / shape.heads;
  const int64_t head = at % shape.heads;
  const int64_t key_at = head / shape.group() * shape.width;
  const int64_t visible = visible_keys(tile, row);
  A q[kColumns];
  load_head(in.q + row * in.q_stride + head * shape.width, shape.width, q);
  // What is merged so far continues as if its keys had come first.
  A* out = o + at * shape.width;
  A mixed[kColumns];
  load_head<A>(out, shape.width, mixed);
  A largest = lse[at];
  A sum = largest == -INFINITY ? 0 : 1;
  for (int64_t key = 0; key < visible; ++key) {
    A k[kColumns];
    A v[kColumns];
    load_head(in.k + key * in.k_stride + key_at, shape.width, k);
    load_head(in.v + key * in.v_stride + key_at, shape.width, v);
    const A score = static_cast<A>(shape.scale) * dot(q, k);
    const A next = score > largest ? score : largest;
    const A keep = exp(largest - next);
    const A weight = exp(score - next);
    sum = sum * keep + weight;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) mixed[i] = mixed[i] * keep + weight * v[i];
    largest = next;
  }
  if (visible == 0) return;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int64_t column = lane_index() + int64_t{i} * kWarp;
    if (column < shape.width) out[column] = mixed[i] / sum;
  }
  __syncwarp();
  if (lane_index() == 0) lse[at] = largest + log(sum);
}

template <typename T>
__global__ void query_gradient_kernel(AttentionTile tile, Shape shape, SliceInputs<T> in,
                                      SliceGradients<T> gradients) {
  using A = Accumulate<T>;
  const int64_t at = warp_index();
  if (at >= tile.query_rows * shape.heads) return;
  const int64_t row = at / shape.heads;
  const int64_t head = at % shape.heads;
  const int64_t key_at = head / shape.group() * shape.width;
  const A scale = static_cast<A>(shape.scale);
  A q[kColumns];
  A d_o[kColumns];
  A d_q[kColumns] = {};
  load_head(in.q + row * in.q_stride + head * shape.width, shape.width, q);
  load_head(gradients.d_o + row * gradients.d_o_stride + head * shape.width, shape.width, d_o);
  const int64_t visible = visible_keys(tile, row);
  for (int64_t key = 0; key < visible; ++key) {
    A k[kColumns];
    A v[kColumns];
    load_head(in.k + key * in.k_stride + key_at, shape.width, k);
    load_head(in.v + key * in.v_stride + key_at, shape.width, v);
    const A weight = exp(scale * dot(q, k) - gradients.lse[at]);
    const A d_score = scale * weight * (dot(d_o, v) - gradients.delta[at]);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) d_q[i] += d_score * k[i];
  }
  add_head(gradients.d_q + at * shape.width, shape.width, d_q);
}

template <typename T>
__global__ void key_gradient_kernel(AttentionTile tile, Shape shape, SliceInputs<T> in,
                                    SliceGradients<T> gradients) {
  using A = Accumulate<T>;
  const int64_t at = warp_index();
  if (at >= tile.key_rows * shape.key_heads) return;
  const int64_t key = at / shape.key_heads;
  const int64_t key_head = at % shape.key_heads;
  const A scale = static_cast<A>(shape.scale);
  A k[kColumns];
  A v[kColumns];
  A d_k[kColumns] = {};
  A d_v[kColumns] = {};
  load_head(in.k + key * in.k_stride + key_head * shape.width, shape.width, k);
  load_head(in.v + key * in.v_stride + key_head * shape.width, shape.width, v);
  const int64_t first = key > tile.diagonal ? key - tile.diagonal : 0;
  for (int64_t row = first; row < tile.query_rows; ++row) {
    for (int64_t in_group = 0; in_group < shape.group(); ++in_group) {
      const int64_t head = key_head * shape.group() + in_group;
      A q[kColumns];
      A d_o[kColumns];
      load_head(in.q + row * in.q_stride + head * shape.width, shape.width, q);
      load_head(gradients.d_o + row * gradients.d_o_stride + head * shape.width, shape.width, d_o);
      const A weight = exp(scale * dot(q, k) - gradients.lse[row * shape.heads + head]);
      const A d_score = scale * weight * (dot(d_o, v) - gradients.delta[row * shape.heads + head]);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        d_k[i] += d_score * q[i];
        d_v[i] += weight * d_o[i];
      }
    }
  }
  add_head(gradients.d_k + at * shape.width, shape.width, d_k);
  add_head(gradients.d_v + at * shape.width, shape.width, d_v);
}

Shape shape_of(const AttentionShape& shape) {
  LONGSPAN_CHECK(shape.head_width <= kSliceAttentionMaxWidth, "heads of width ", shape.head_width);
  return {shape.heads, shape.key_heads, shape.head_width, shape.scale};
}

int64_t blocks_of(int64_t warps) {
  return divide_up(warps, kThreads / kWarp);
}

}  // namespace

template <typename T>
void slice_attention_forward(const AttentionTile& tile, const AttentionShape& shape,
                             const SliceInputs<T>& in, Accumulate<T>* o, Accumulate<T>* lse,
                             Stream stream) {
  launch("slice attention", forward_kernel<T>, blocks_of(tile.query_rows * shape.heads), kThreads,
         stream, tile, shape_of(shape), in, o, lse);
}

template <typename T>
void slice_attention_backward(const AttentionTile& tile, const AttentionShape& shape,
                              const SliceInputs<T>& in, const SliceGradients<T>& gradients,
                              Stream stream) {
  launch("slice attention, dQ", query_gradient_kernel<T>, blocks_of(tile.query_rows * shape.heads),
         kThreads, stream, tile, shape_of(shape), in, gradients);
  launch("slice attention, dK and dV", key_gradient_kernel<T>,
         blocks_of(tile.key_rows * shape.key_heads), kThreads, stream, tile, shape_of(shape), in,
         gradients);
}

#define LONGSPAN_INSTANTIATE(T)                                                                \
  template void slice_attention_forward(const AttentionTile&, const AttentionShape&,           \
                                        const SliceInputs<T>&, Accumulate<T>*, Accumulate<T>*, \
                                        Stream);                                               \
  template void slice_attention_backward(const AttentionTile&, const AttentionShape&,          \
                                         const SliceInputs<T>&, const SliceGradients<T>&, Stream);
LONGSPAN_INSTANTIATE(Bf16)
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan::cuda
