#include "kernels/cuda/hyper_connection.h"

#include <algorithm>

#include "kernels/cuda/hyper_maps.cuh"
#include "kernels/cuda/launch.cuh"

namespace longspan::cuda {
namespace {

constexpr int kWarps = kThreads / kWarp;

// What the kernels need of a shape, in the accumulation type.
template <typename A>
struct Numbers {
  int64_t width;
  int64_t flat_width;
  A norm_epsilon;
  A epsilon;
  int sinkhorn_steps;
};

template <typename A>
Numbers<A> numbers_of(const HyperShape& shape) {
  return {shape.width, shape.flat_width(), static_cast<A>(shape.norm_epsilon),
          static_cast<A>(shape.epsilon), static_cast<int>(2 * shape.sinkhorn_rounds - 1)};
}

// Sums over a block of kCount numbers of every thread; sums[k] is whole after the next
// __syncthreads().
template <int kCount, typename A>
__device__ void block_sums(const A* values, A (*of_warps)[kCount], A* sums) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const A sum = warp_sum(values[k]);
    if (lane == 0) of_warps[warp][k] = sum;
  }
  __syncthreads();
  if (threadIdx.x < kCount) {
    A sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += of_warps[w][threadIdx.x];
    sums[threadIdx.x] = sum;
  }
}

template <typename T, int N, int kVector>
__global__ void read_forward_kernel(Numbers<Accumulate<T>> numbers, HyperReadInputs<T> inputs,
                                    Accumulate<T>* products, HyperReadOutputs<T> outputs) {
  using A = Accumulate<T>;
  constexpr int kMaps = N * (N + 2);
  __shared__ A words[kWarps];
  __shared__ A raw[kMaps];
  __shared__ A read[N];
  const int64_t row = blockIdx.x;
  const T* x = inputs.streams + row * numbers.flat_width;
  A squares = 0;
#pragma unroll 4
  for (int64_t at = threadIdx.x * kVector; at < numbers.flat_width; at += kThreads * kVector) {
    A values[kVector];
    load<kVector>(x + at, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) squares += values[i] * values[i];
  }
  const A mean = block_sum(squares, words) / static_cast<A>(numbers.flat_width);
  const A inverse_rms = A{1} / sqrt(mean + numbers.norm_epsilon);
  if (threadIdx.x < kMaps) {
    raw[threadIdx.x] = products[row * kMaps + threadIdx.x] *= inverse_rms;
  }
  __syncthreads();
  if (threadIdx.x < kWarp) {
    const int i = lane_in_group(N);
    Maps<A, N> maps = maps_of<A, N>(raw, inputs.base, inputs.scale);
    const Sinkhorn<A, N> sinkhorn{numbers.sinkhorn_steps, numbers.epsilon};
    sinkhorn.forward(maps.softmax, nullptr);
    if (threadIdx.x < N) {
      read[i] = maps.read_gate + numbers.epsilon;
      outputs.write[row * N + i] = A{2} * maps.write_gate;
#pragma unroll
      for (int j = 0; j < N; ++j) outputs.mix[(row * N + i) * N + j] = maps.softmax[j];
    }
    if (threadIdx.x == 0) outputs.inverse_rms[row] = inverse_rms;
  }
  __syncthreads();
  for (int64_t at = threadIdx.x * kVector; at < numbers.width; at += kThreads * kVector) {
    A sums[kVector] = {};
#pragma unroll
    for (int stream = 0; stream < N; ++stream) {
      A values[kVector];
      load<kVector>(x + stream * numbers.width + at, values);
#pragma unroll
      for (int i = 0; i < kVector; ++i) sums[i] += read[stream] * values[i];
    }
    store<kVector>(outputs.x_in + row * numbers.width + at, sums);
  }
}

// What one warp makes of a token's gradients, for the whole block.
template <typename A, int N>
struct ReadBackward {
  A raw[N * (N + 2)];
  A dread[N];
  A read[N];
  A pull;
  A of_warps[kWarps][N];
  SinkhornSteps<A, N> steps;
};

// The gradients of a token's maps -> of its products, and the token's terms of the gradients of
// base and scale. By the first warp.
template <typename T, int N>
__device__ void maps_backward(const Numbers<Accumulate<T>>& numbers,
                              const HyperReadInputs<T>& inputs, Accumulate<T> inverse_rms,
                              const Accumulate<T>* dwrite, const Accumulate<T>* dmix,
                              ReadBackward<Accumulate<T>, N>& shared, T* dproducts,
                              Accumulate<T>* terms) {
  using A = Accumulate<T>;
  constexpr int kMaps = N * (N + 2);
  const int i = lane_in_group(N);
  const Maps<A, N> maps = maps_of<A, N>(shared.raw, inputs.base, inputs.scale);
  const Sinkhorn<A, N> sinkhorn{numbers.sinkhorn_steps, numbers.epsilon};
  A result[N];
  A gradient[N];
#pragma unroll
  for (int j = 0; j < N; ++j) {
    result[j] = maps.softmax[j];
    gradient[j] = dmix[i * N + j];
  }
  sinkhorn.forward(result, &shared.steps);
  sinkhorn.backward(shared.steps, gradient);
  A along_row = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) along_row += gradient[j] * maps.softmax[j];

  // dz: read, write, then the row of the mix.
  A dz[N + 2];
  dz[0] = shared.dread[i] * maps.read_gate * (A{1} - maps.read_gate);
  dz[1] = A{2} * dwrite[i] * maps.write_gate * (A{1} - maps.write_gate);
#pragma unroll
  for (int j = 0; j < N; ++j) dz[2 + j] = maps.softmax[j] * (gradient[j] - along_row);

  A of_scale[3] = {};  // gradients of the three scales
#pragma unroll
  for (int m = 0; m < N + 2; ++m) {
    const int place = m < 2 ? m * N + i : 2 * N + i * N + m - 2;
    const int part = m < 2 ? m : 2;
    of_scale[part] += dz[m] * shared.raw[place];
    if (threadIdx.x < N) {
      dproducts[place] = narrow_to<T>(dz[m] * inputs.scale[part] * inverse_rms);
      terms[place] = dz[m];
    }
  }
  A along = 0;  // <draw, raw>: through the norm, the sum over flat(X) of dxh * xh
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    of_scale[part] = group_sum<N>(of_scale[part]);
    along += of_scale[part] * inputs.scale[part];
  }
  if (threadIdx.x < 3) {
    terms[kMaps + threadIdx.x] = threadIdx.x == 0   ? of_scale[0]
                                 : threadIdx.x == 1 ? of_scale[1]
                                                    : of_scale[2];
  }
  if (threadIdx.x < N) shared.read[i] = maps.read_gate + numbers.epsilon;
  if (threadIdx.x == 0) {
    shared.pull = along * inverse_rms * inverse_rms / static_cast<A>(numbers.flat_width);
  }
}

template <typename T, int N, int kVector>
__global__ void read_backward_kernel(Numbers<Accumulate<T>> numbers, HyperReadInputs<T> inputs,
                                     const Accumulate<T>* raw, const Accumulate<T>* inverse_rms,
                                     HyperReadGradients<T> gradients, T* streams_gradient,
                                     T* products_gradient, Accumulate<T>* terms) {
  using A = Accumulate<T>;
  constexpr int kMaps = N * (N + 2);
  __shared__ ReadBackward<A, N> shared;
  const int64_t row = blockIdx.x;
  const T* x = inputs.streams + row * numbers.flat_width;
  const T* dx_in = gradients.x_in + row * numbers.width;
  if (threadIdx.x < kMaps) shared.raw[threadIdx.x] = raw[row * kMaps + threadIdx.x];
  A dread[N] = {};
  for (int64_t at = threadIdx.x * kVector; at < numbers.width; at += kThreads * kVector) {
    A outer[kVector];
    load<kVector>(dx_in + at, outer);
#pragma unroll
    for (int stream = 0; stream < N; ++stream) {
      A values[kVector];
      load<kVector>(x + stream * numbers.width + at, values);
#pragma unroll
      for (int i = 0; i < kVector; ++i) dread[stream] += values[i] * outer[i];
    }
  }
  block_sums<N>(dread, shared.of_warps, shared.dread);
  if (threadIdx.x < kWarp) {
    __syncwarp();
    maps_backward<T, N>(numbers, inputs, inverse_rms[row], gradients.write + row * N,
                        gradients.mix + row * N * N, shared, products_gradient + row * kMaps,
                        terms + row * (kMaps + 3));
  }
  __syncthreads();
  T* dx = streams_gradient + row * numbers.flat_width;
  for (int64_t at = threadIdx.x * kVector; at < numbers.width; at += kThreads * kVector) {
    A outer[kVector];
    load<kVector>(dx_in + at, outer);
#pragma unroll
    for (int stream = 0; stream < N; ++stream) {
      A values[kVector];
      load<kVector>(x + stream * numbers.width + at, values);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        values[i] = shared.read[stream] * outer[i] - shared.pull * values[i];
      }
      store<kVector>(dx + stream * numbers.width + at, values);
    }
  }
}

// A column of terms over one group of kHyperBlockRows tokens: eight threads take every eighth row
// each, and their sums are added in order.
constexpr int kColumnThreads = 8;

template <typename A>
__global__ void partial_terms_kernel(const A* terms, int64_t tokens, int64_t columns,
                                     int64_t column_blocks, A* partials) {
  __shared__ A of_threads[kColumnThreads][kWarp];
  const int64_t group = blockIdx.x / column_blocks;
  const int64_t column = blockIdx.x % column_blocks * kWarp + threadIdx.x;
  const int64_t row_end = min(tokens, (group + 1) * kHyperBlockRows);
  A sum = 0;
  if (column < columns) {
    for (int64_t row = group * kHyperBlockRows + threadIdx.y; row < row_end;
         row += kColumnThreads) {
      sum += terms[row * columns + column];
    }
  }
  of_threads[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  sum = 0;
  for (int thread = 0; thread < kColumnThreads; ++thread) sum += of_threads[thread][threadIdx.x];
  partials[group * columns + column] = sum;
}

template <typename A>
__global__ void add_terms_kernel(const A* partials, int64_t groups, int64_t columns, A* base,
                                 A* scale) {
  const int64_t column = grid_thread();
  if (column >= columns) return;
  A sum = 0;
  for (int64_t group = 0; group < groups; ++group) sum += partials[group * columns + column];
  const int64_t maps = columns - 3;
  (column < maps ? base[column] : scale[column - maps]) += sum;
}

template <typename T, int N, int kVector>
__global__ void write_forward_kernel(int64_t width, int64_t vectors, HyperWriteInputs<T> inputs,
                                     T* streams_out) {
  using A = Accumulate<T>;
  const int64_t index = grid_thread();
  if (index >= vectors) return;
  const int64_t row_vectors = width / kVector;
  const int64_t row = index / row_vectors;
  const int64_t at = index % row_vectors * kVector;
  A y[kVector];
  load<kVector>(inputs.y + row * width + at, y);
  A x[N][kVector];
#pragma unroll
  for (int i = 0; i < N; ++i) load<kVector>(inputs.streams + (row * N + i) * width + at, x[i]);
  const A* mix = inputs.mix + row * N * N;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    A out[kVector];
    const A write = inputs.write[row * N + j];
#pragma unroll
    for (int c = 0; c < kVector; ++c) out[c] = write * y[c];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const A share = mix[i * N + j];
#pragma unroll
      for (int c = 0; c < kVector; ++c) out[c] += share * x[i][c];
    }
    store<kVector>(streams_out + (row * N + j) * width + at, out);
  }
}

template <typename T, int N, int kVector>
__global__ void write_backward_kernel(int64_t width, HyperWriteInputs<T> inputs,
                                      const T* streams_out_gradient,
                                      HyperWriteGradients<T> gradients) {
  using A = Accumulate<T>;
  constexpr int kSums = N + N * N;  // dwrite, dmix
  __shared__ A maps[kSums];
  __shared__ A of_warps[kWarps][kSums];
  __shared__ A whole[kSums];
  const int64_t row = blockIdx.x;
  if (threadIdx.x < kSums) {
    maps[threadIdx.x] = threadIdx.x < N ? inputs.write[row * N + threadIdx.x]
                                        : inputs.mix[row * N * N + threadIdx.x - N];
  }
  __syncthreads();
  A sums[kSums] = {};
  for (int64_t at = threadIdx.x * kVector; at < width; at += kThreads * kVector) {
    A outer[N][kVector];
    A y[kVector];
    A dy[kVector] = {};
    load<kVector>(inputs.y + row * width + at, y);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      load<kVector>(streams_out_gradient + (row * N + j) * width + at, outer[j]);
#pragma unroll
      for (int c = 0; c < kVector; ++c) {
        sums[j] += outer[j][c] * y[c];
        dy[c] += maps[j] * outer[j][c];
      }
    }
    store<kVector>(gradients.y + row * width + at, dy);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      A x[kVector];
      A dx[kVector] = {};
      load<kVector>(inputs.streams + (row * N + i) * width + at, x);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const A share = maps[N + i * N + j];
#pragma unroll
        for (int c = 0; c < kVector; ++c) {
          sums[N + i * N + j] += outer[j][c] * x[c];
          dx[c] += share * outer[j][c];
        }
      }
      store<kVector>(gradients.streams + (row * N + i) * width + at, dx);
    }
  }
  block_sums<kSums>(sums, of_warps, whole);
  if (threadIdx.x < N) {
    gradients.write[row * N + threadIdx.x] = whole[threadIdx.x];
  } else if (threadIdx.x < kSums) {
    gradients.mix[row * N * N + threadIdx.x - N] = whole[threadIdx.x];
  }
}

// Calls function<N, kVector>() for the shape; wide if all rows begin at 16 bytes.
template <typename T, typename Function>
void for_shape(const HyperShape& shape, std::initializer_list<const T*> arrays,
               const Function& function) {
  LONGSPAN_CHECK(*hyper_refusal(shape) == '\0', "hyper-connections: ", hyper_refusal(shape));
  bool wide = shape.width % kWide<T> == 0;
  for (const T* array : arrays) wide = wide && is_aligned(array);
  const auto of_width = [&]<int N>() {
    if (wide) return function.template operator()<N, kWide<T>>();
    return function.template operator()<N, 1>();
  };
  if (shape.streams == 2) return of_width.template operator()<2>();
  return of_width.template operator()<4>();
}

}  // namespace

const char* hyper_refusal(const HyperShape& shape) {
  if (shape.streams != 2 && shape.streams != 4) return "the GPU kernels take 2 or 4 streams";
  if (2 * shape.sinkhorn_rounds - 1 > kMaxSinkhornSteps) {
    return "the GPU kernels take at most 32 Sinkhorn rounds";
  }
  return "";
}

template <typename T>
void hyper_read_forward(const HyperShape& shape, const HyperReadInputs<T>& inputs, int64_t tokens,
                        Accumulate<T>* products, const HyperReadOutputs<T>& outputs,
                        Stream stream) {
  for_shape<T>(shape, {inputs.streams, outputs.x_in}, [&]<int N, int kVector>() {
    launch("hyper-connection read", read_forward_kernel<T, N, kVector>, tokens, kThreads, stream,
           numbers_of<Accumulate<T>>(shape), inputs, products, outputs);
  });
}

template <typename T>
void hyper_read_backward(const HyperShape& shape, const HyperReadInputs<T>& inputs,
                         const Accumulate<T>* raw, const Accumulate<T>* inverse_rms,
                         const HyperReadGradients<T>& gradients, int64_t tokens,
                         T* streams_gradient, T* products_gradient, Accumulate<T>* terms,
                         Accumulate<T>* partials, Accumulate<T>* base_gradient,
                         Accumulate<T>* scale_gradient, Stream stream) {
  using A = Accumulate<T>;
  if (tokens == 0) return;
  for_shape<T>(shape, {inputs.streams, gradients.x_in, streams_gradient},
               [&]<int N, int kVector>() {
                 launch("hyper-connection read backward", read_backward_kernel<T, N, kVector>,
                        tokens, kThreads, stream, numbers_of<A>(shape), inputs, raw, inverse_rms,
                        gradients, streams_gradient, products_gradient, terms);
               });
  const int64_t columns = hyper_terms(shape);
  const int64_t column_blocks = divide_up(columns, kWarp);
  const int64_t groups = hyper_partial_rows(tokens);
  launch("hyper-connection partial sums", partial_terms_kernel<A>, groups * column_blocks,
         dim3(kWarp, kColumnThreads), stream, terms, tokens, columns, column_blocks, partials);
  launch("hyper-connection sums", add_terms_kernel<A>, divide_up(columns, kThreads), kThreads,
         stream, partials, groups, columns, base_gradient, scale_gradient);
}

template <typename T>
void hyper_write_forward(const HyperShape& shape, const HyperWriteInputs<T>& inputs, int64_t tokens,
                         T* streams_out, Stream stream) {
  for_shape<T>(shape, {inputs.streams, inputs.y, streams_out}, [&]<int N, int kVector>() {
    const int64_t vectors = tokens * (shape.width / kVector);
    launch("hyper-connection write", write_forward_kernel<T, N, kVector>,
           divide_up(vectors, kThreads), kThreads, stream, shape.width, vectors, inputs,
           streams_out);
  });
}

template <typename T>
void hyper_write_backward(const HyperShape& shape, const HyperWriteInputs<T>& inputs,
                          const T* streams_out_gradient, int64_t tokens,
                          const HyperWriteGradients<T>& gradients, Stream stream) {
  for_shape<T>(
      shape, {inputs.streams, inputs.y, streams_out_gradient, gradients.streams, gradients.y},
      [&]<int N, int kVector>() {
        launch("hyper-connection write backward", write_backward_kernel<T, N, kVector>, tokens,
               kThreads, stream, shape.width, inputs, streams_out_gradient, gradients);
      });
}

#define LONGSPAN_INSTANTIATE(T)                                                                    \
  template void hyper_read_forward(const HyperShape&, const HyperReadInputs<T>&, int64_t,          \
                                   Accumulate<T>*, const HyperReadOutputs<T>&, Stream);            \
  template void hyper_read_backward(const HyperShape&, const HyperReadInputs<T>&,                  \
                                    const Accumulate<T>*, const Accumulate<T>*,                    \
                                    const HyperReadGradients<T>&, int64_t, T*, T*, Accumulate<T>*, \
                                    Accumulate<T>*, Accumulate<T>*, Accumulate<T>*, Stream);       \
  template void hyper_write_forward(const HyperShape&, const HyperWriteInputs<T>&, int64_t, T*,    \
                                    Stream);                                                       \
  template void hyper_write_backward(const HyperShape&, const HyperWriteInputs<T>&, const T*,      \
                                     int64_t, const HyperWriteGradients<T>&, Stream);
LONGSPAN_INSTANTIATE(Bf16)
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan::cuda
