#include "kernels/cuda/kda_rows.h"

#include "kernels/cuda/partial_sums.cuh"

namespace longspan::cuda {
namespace {

constexpr int64_t kMostTokenGroups = 128;  // partial sums of the gate's gradients
constexpr int64_t kMostRowGroups = 4096;   // of the norm's

int64_t token_groups(int64_t tokens) {
  const int64_t groups = divide_up(tokens, 64);
  return groups < kMostTokenGroups ? groups : kMostTokenGroups;
}

int64_t row_groups(int64_t rows) {
  const int64_t groups = divide_up(rows, 16);
  return groups < kMostRowGroups ? groups : kMostRowGroups;
}

template <typename A>
__device__ A logistic(A z) {
  return A{1} / (A{1} + exp(-z));
}

// log(1 + exp(z)) without overflow.
template <typename A>
__device__ A softplus(A z) {
  return (z > 0 ? z : A{0}) + log1p(exp(-fabs(z)));
}

template <typename T>
__global__ void gate_kernel(DecayGate gate, GateShape shape, const T* f, const Accumulate<T>* a_log,
                            const Accumulate<T>* dt_bias, int64_t count, Accumulate<T>* g) {
  using A = Accumulate<T>;
  const int64_t at = grid_thread();
  if (at >= count) return;
  const int64_t channel = at % (shape.heads * shape.width);
  const A rate = exp(a_log[channel / shape.width]);
  const A z = widen(f[at]) + dt_bias[channel];
  g[at] = gate.kind == DecayGate::Kind::kBounded ? static_cast<A>(gate.bound) * logistic(rate * z)
                                                 : -rate * softplus(z);
}

// A thread takes one channel through a group of tokens. Its two sums are dt_bias's gradient, and
// the channel's part of a_log's.
template <typename T>
__global__ void gate_backward_kernel(DecayGate gate, GateShape shape, const T* f,
                                     const Accumulate<T>* a_log, const Accumulate<T>* dt_bias,
                                     const Accumulate<T>* dg, int64_t tokens, int64_t groups, T* df,
                                     Accumulate<T>* partials) {
  using A = Accumulate<T>;
  const int64_t channels = shape.heads * shape.width;
  const int64_t blocks = (channels + kThreads - 1) / kThreads;
  const int64_t group = blockIdx.x / blocks;
  const int64_t channel = blockIdx.x % blocks * kThreads + threadIdx.x;
  if (channel >= channels) return;
  const A rate = exp(a_log[channel / shape.width]);
  const A bias = dt_bias[channel];
  const bool bounded = gate.kind == DecayGate::Kind::kBounded;
  A of_bias = 0;
  A of_rate = 0;
#pragma unroll 4
  for (int64_t token = tokens * group / groups; token < tokens * (group + 1) / groups; ++token) {
    const int64_t at = token * channels + channel;
    const A z = widen(f[at]) + bias;
    const A grad = dg[at];
    A dz;
    if (bounded) {
      const A open = logistic(rate * z);
      dz = rate * (static_cast<A>(gate.bound) * grad * open * (A{1} - open));
      of_rate += dz * z;
    } else {
      dz = -rate * grad * logistic(z);
      of_rate -= rate * grad * softplus(z);
    }
    of_bias += dz;
    df[at] = narrow_to<T>(dz);
  }
  partials[group * channels + channel] = of_bias;
  partials[(groups + group) * channels + channel] = of_rate;
}

// gradient[head] += the sum of its channels' `of_rate`. A warp for each head.
template <typename A>
__global__ void add_channels_kernel(const A* of_rate, GateShape shape, A* gradient) {
  const int64_t head = grid_thread() / kWarp;
  if (head >= shape.heads) return;
  A sum = 0;
  for (int64_t c = threadIdx.x % kWarp; c < shape.width; c += kWarp) {
    sum += of_rate[head * shape.width + c];
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) gradient[head] += sum;
}

// A row of the gated norm in a warp: lane l has kVector values from kVector l on, and so on.
template <typename T, int kVector, int kItems>
class NormRow {
  using A = Accumulate<T>;

 public:
  __device__ explicit NormRow(int64_t width)
      : width_(width), lane_(static_cast<int>(threadIdx.x) % kWarp) {}

  template <typename From>
  __device__ void read(const From* row, A (&values)[kItems * kVector]) const {
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const int at = (item * kWarp + lane_) * kVector;
      if (at < width_) {
        load<kVector>(row + at, values + item * kVector);
      } else {
#pragma unroll
        for (int i = 0; i < kVector; ++i) values[item * kVector + i] = 0;
      }
    }
  }

  template <typename To>
  __device__ void write(To* row, const A (&values)[kItems * kVector]) const {
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const int at = (item * kWarp + lane_) * kVector;
      if (at < width_) store<kVector>(row + at, values + item * kVector);
    }
  }

 private:
  int64_t width_;
  int lane_;
};

template <typename T, int kVector, int kItems>
__global__ void norm_kernel(const T* o, const T* gate, const T* weight, Accumulate<T> epsilon,
                            int64_t rows, int64_t width, T* y, Accumulate<T>* inverse_rms) {
  using A = Accumulate<T>;
  constexpr int kValues = kVector * kItems;
  const int64_t row = grid_thread() / kWarp;
  if (row >= rows) return;
  const NormRow<T, kVector, kItems> lanes(width);
  A values[kValues];
  A gates[kValues];
  A gains[kValues];
  lanes.read(o + row * width, values);
  lanes.read(gate + row * width, gates);
  lanes.read(weight, gains);
  A squares = 0;
#pragma unroll
  for (int i = 0; i < kValues; ++i) squares += values[i] * values[i];
  const A scale = A{1} / sqrt(warp_sum(squares) / static_cast<A>(width) + epsilon);
#pragma unroll
  for (int i = 0; i < kValues; ++i) values[i] = values[i] * scale * gains[i] * logistic(gates[i]);
  lanes.write(y + row * width, values);
  if (threadIdx.x % kWarp == 0) inverse_rms[row] = scale;
}

// A warp takes a group of rows.
template <typename T, int kVector, int kItems>
__global__ void norm_backward_kernel(const T* o, const T* gate, const T* weight,
                                     const Accumulate<T>* inverse_rms, const T* dy, int64_t rows,
                                     int64_t width, int64_t groups, T* d_o, T* dgate,
                                     Accumulate<T>* partials) {
  using A = Accumulate<T>;
  constexpr int kValues = kVector * kItems;
  const int64_t group = grid_thread() / kWarp;
  if (group >= groups) return;
  const NormRow<T, kVector, kItems> lanes(width);
  A gains[kValues];
  lanes.read(weight, gains);
  A sums[kValues] = {};
  for (int64_t row = rows * group / groups; row < rows * (group + 1) / groups; ++row) {
    A in[kValues];
    A gates[kValues];
    A grad[kValues];
    lanes.read(o + row * width, in);
    lanes.read(gate + row * width, gates);
    lanes.read(dy + row * width, grad);
    const A scale = inverse_rms[row];
    A dot = 0;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const A open = logistic(gates[i]);
      const A normed = in[i] * scale;
      sums[i] += grad[i] * normed * open;
      grad[i] *= gains[i] * open;
      dot += grad[i] * normed;
      gates[i] = grad[i] * normed * (A{1} - open);
    }
    const A pull = warp_sum(dot) / static_cast<A>(width) * scale;
#pragma unroll
    for (int i = 0; i < kValues; ++i) grad[i] = scale * (grad[i] - pull * in[i]);
    lanes.write(d_o + row * width, grad);
    lanes.write(dgate + row * width, gates);
  }
  lanes.write(partials + group * width, sums);
}

// Calls function<kVector, kItems>() for rows of the width.
template <typename Function>
void for_norm_width(int64_t width, const Function& function) {
  LONGSPAN_CHECK(gated_norm_fits(width), "gated norm on rows of ", width);
  if (width <= kWarp) return function.template operator()<1, 1>();
  if (width == 4 * kWarp) return function.template operator()<4, 1>();
  function.template operator()<1, 8>();
}

}  // namespace

template <typename T>
void decay_gate_forward(const DecayGate& gate, const GateShape& shape, const T* f,
                        const Accumulate<T>* a_log, const Accumulate<T>* dt_bias, int64_t tokens,
                        Accumulate<T>* g, Stream stream) {
  const int64_t count = tokens * shape.heads * shape.width;
  launch("decay gate", gate_kernel<T>, divide_up(count, kThreads), kThreads, stream, gate, shape, f,
         a_log, dt_bias, count, g);
}

int64_t decay_gate_partials(const GateShape& shape, int64_t tokens) {
  return (2 * token_groups(tokens) + 1) * shape.heads * shape.width;
}

template <typename T>
void decay_gate_backward(const DecayGate& gate, const GateShape& shape, const T* f,
                         const Accumulate<T>* a_log, const Accumulate<T>* dt_bias,
                         const Accumulate<T>* dg, int64_t tokens, T* df, Accumulate<T>* partials,
                         Accumulate<T>* a_log_gradient, Accumulate<T>* dt_bias_gradient,
                         Stream stream) {
  using A = Accumulate<T>;
  if (tokens == 0) return;
  const int64_t groups = token_groups(tokens);
  const int64_t channels = shape.heads * shape.width;
  launch("gradient of the decay gate", gate_backward_kernel<T>,
         groups * divide_up(channels, kThreads), kThreads, stream, gate, shape, f, a_log, dt_bias,
         dg, tokens, groups, df, partials);
  add_partials("sum of the gate's partial gradients", partials, groups, channels, dt_bias_gradient,
               stream);
  A* of_rate = partials + 2 * groups * channels;
  const cudaError_t error =
      cudaMemsetAsync(of_rate, 0, static_cast<size_t>(channels) * sizeof(A), stream);
  LONGSPAN_CHECK(error == cudaSuccess, "zeros: ", cudaGetErrorString(error));
  add_partials("sum of the gate's partial gradients", partials + groups * channels, groups,
               channels, of_rate, stream);
  launch("sum of the gate's channels", add_channels_kernel<A>,
         divide_up(shape.heads, kThreads / kWarp), kThreads, stream, of_rate, shape,
         a_log_gradient);
}

bool gated_norm_fits(int64_t width) {
  return width <= 8 * kWarp;
}

template <typename T>
void gated_norm_forward(const T* o, const T* gate, const T* weight, double epsilon, int64_t rows,
                        int64_t width, T* y, Accumulate<T>* inverse_rms, Stream stream) {
  for_norm_width(width, [&]<int kVector, int kItems>() {
    launch("gated norm", norm_kernel<T, kVector, kItems>, divide_up(rows, kThreads / kWarp),
           kThreads, stream, o, gate, weight, epsilon, rows, width, y, inverse_rms);
  });
}

int64_t gated_norm_partials(int64_t rows, int64_t width) {
  return row_groups(rows) * width;
}

template <typename T>
void gated_norm_backward(const T* o, const T* gate, const T* weight,
                         const Accumulate<T>* inverse_rms, const T* dy, int64_t rows, int64_t width,
                         T* d_o, T* dgate, Accumulate<T>* partials, Accumulate<T>* weight_gradient,
                         Stream stream) {
  const int64_t groups = row_groups(rows);
  for_norm_width(width, [&]<int kVector, int kItems>() {
    launch("gradient of the gated norm", norm_backward_kernel<T, kVector, kItems>,
           divide_up(groups, kThreads / kWarp), kThreads, stream, o, gate, weight, inverse_rms, dy,
           rows, width, groups, d_o, dgate, partials);
  });
  add_partials("sum of the gated norm's partial gradients", partials, groups, width,
               weight_gradient, stream);
}

#define LONGSPAN_INSTANTIATE(T)                                                                   \
  template void decay_gate_forward(const DecayGate&, const GateShape&, const T*,                  \
                                   const Accumulate<T>*, const Accumulate<T>*, int64_t,           \
                                   Accumulate<T>*, Stream);                                       \
  template void decay_gate_backward(                                                              \
      const DecayGate&, const GateShape&, const T*, const Accumulate<T>*, const Accumulate<T>*,   \
      const Accumulate<T>*, int64_t, T*, Accumulate<T>*, Accumulate<T>*, Accumulate<T>*, Stream); \
  template void gated_norm_forward(const T*, const T*, const T*, double, int64_t, int64_t, T*,    \
                                   Accumulate<T>*, Stream);                                       \
  template void gated_norm_backward(const T*, const T*, const T*, const Accumulate<T>*, const T*, \
                                    int64_t, int64_t, T*, T*, Accumulate<T>*, Accumulate<T>*,     \
                                    Stream);
LONGSPAN_INSTANTIATE(Bf16)
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan::cuda
