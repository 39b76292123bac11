#include "kernels/cuda/kda_inputs.h"

#include <cmath>

#include "kernels/cuda/kda_tiles.cuh"
#include "kernels/cuda/partial_sums.cuh"

namespace longspan::cuda {
namespace {

constexpr double kUnitEpsilon = 1e-6;
constexpr int64_t kMostGroups = 64;  // of chunks, that share a partial sum of the weight's gradient

int64_t groups_of(const KdaPlaces& places) {
  return places.num_chunks < kMostGroups ? places.num_chunks : kMostGroups;
}

// One head of q, k or v ("unit") and its warp. Each lane has kItems channels side by side; those
// beyond the real width are zero.
template <typename T, int W>
class ConvolutionWarp {
  using A = Accumulate<T>;
  static constexpr int kItems = W / kWarp;

 public:
  __device__ ConvolutionWarp(const KdaPlaces& places, const KdaConvolution<T>& in, int64_t unit)
      : places_(places),
        in_(in),
        unit_(unit),
        channel_(static_cast<int>(threadIdx.x) % kWarp * kItems) {
#pragma unroll
    for (int tap = 0; tap < kKdaTaps; ++tap) {
      load_channels(in.weight + (unit * kKdaTaps + tap) * places.width, weight_[tap]);
    }
  }

  __device__ void convolve(const KdaChunk& chunk, T* qkv) {
    begin_window(chunk);
    const int64_t end = chunk.first_row + chunk.rows;
    fetch(in_.x + at(chunk.first_row), next_x_);
    for (int64_t row = chunk.first_row; row < end; ++row) {
      advance();
      if (row + 1 < end) fetch(in_.x + at(row + 1), next_x_);
      A y[kItems];
      A squares = 0;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const A z = sum(i);
        y[i] = z * logistic(z);
        squares += y[i] * y[i];
      }
      if (is_unit_row()) {
        const A factor = scale() / sqrt(warp_sum(squares) + static_cast<A>(kUnitEpsilon));
#pragma unroll
        for (int i = 0; i < kItems; ++i) y[i] *= factor;
      }
      store<kItems>(qkv + (unit_ * places_.tokens + row) * W + channel_, y);
    }
  }

  // Rows of the chunk, and the next ones of the stretch that look back at them.
  __device__ void differentiate(const KdaChunk& chunk, const T* d_qkv,
                                const KdaConvolutionGradients<T>& out) {
    const KdaChunk& last = places_.chunks[places_.first_chunks[chunk.stretch + 1] - 1];
    const int64_t stretch_end = last.first_row + last.rows;
    const int64_t chunk_end = chunk.first_row + chunk.rows;
    A d_z[kKdaTaps][kItems] = {};  // of the last rows
    T next_d[kItems];
    const int64_t end = min(stretch_end, chunk_end + kKdaTaps - 1);
    const auto fetch_row = [&](int64_t row) {
      fetch(in_.x + at(row), next_x_);
      load_raw(d_qkv + (unit_ * places_.tokens + row) * W + channel_, next_d);
    };
    begin_window(chunk);
    fetch_row(chunk.first_row);
    for (int64_t row = chunk.first_row; row < chunk_end + kKdaTaps - 1; ++row) {
#pragma unroll
      for (int tap = 0; tap + 1 < kKdaTaps; ++tap) {
#pragma unroll
        for (int i = 0; i < kItems; ++i) d_z[tap][i] = d_z[tap + 1][i];
      }
      if (row < end) {
        advance();
#pragma unroll
        for (int i = 0; i < kItems; ++i) d_z[kKdaTaps - 1][i] = widen(next_d[i]);
        if (row + 1 < end) fetch_row(row + 1);
        differentiate_row(d_z[kKdaTaps - 1]);
      } else {
#pragma unroll
        for (int i = 0; i < kItems; ++i) d_z[kKdaTaps - 1][i] = 0;
      }
      if (row < chunk_end) {
#pragma unroll
        for (int tap = 0; tap < kKdaTaps; ++tap) {
#pragma unroll
          for (int i = 0; i < kItems; ++i) {
            d_weight_[tap][i] += d_z[kKdaTaps - 1][i] * window_[tap][i];
          }
        }
      }
      write_d_x(chunk, row - (kKdaTaps - 1), d_z, out);
    }
  }

  __device__ void write_partials(A* partials) const {
#pragma unroll
    for (int tap = 0; tap < kKdaTaps; ++tap) {
      store_channels(partials + (unit_ * kKdaTaps + tap) * places_.width, d_weight_[tap]);
    }
  }

 private:
  __device__ static A logistic(A z) {
    return A{1} / (A{1} + exp_of<T>(-z));
  }
  __device__ bool is_unit_row() const {
    return unit_ < 2 * places_.heads;
  }
  __device__ A scale() const {
    return unit_ < places_.heads ? A{1} / sqrt(static_cast<A>(places_.width)) : A{1};
  }

  template <typename From>
  __device__ void load_channels(const From* row, A (&values)[kItems]) const {
    if (places_.width == W) return load<kItems>(row + channel_, values);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      values[i] = channel_ + i < places_.width ? widen(row[channel_ + i]) : A{0};
    }
  }

  __device__ static void load_raw(const T* row, T (&values)[kItems]) {
    const auto packed = *reinterpret_cast<const Packed<kItems, T>*>(row);
#pragma unroll
    for (int i = 0; i < kItems; ++i) values[i] = packed.values[i];
  }

  // A row as it stands, so that nothing waits for it before it is used.
  __device__ void fetch(const T* row, T (&values)[kItems]) const {
    if (places_.width == W) return load_raw(row + channel_, values);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      values[i] = channel_ + i < places_.width ? row[channel_ + i] : narrow_to<T>(A{0});
    }
  }

  template <typename To>
  __device__ void store_channels(To* row, const A (&values)[kItems]) const {
    if (places_.width == W) return store<kItems>(row + channel_, values);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (channel_ + i < places_.width) row[channel_ + i] = narrow_to<To>(values[i]);
    }
  }

  __device__ int64_t at(int64_t row) const {
    return (row * 3 * places_.heads + unit_) * places_.width;
  }

  // The rows that the chunk's first row looks back at: the chunks of a stretch follow each other.
  __device__ void begin_window(const KdaChunk& chunk) {
#pragma unroll
    for (int tap = 1; tap < kKdaTaps; ++tap) {
      const int64_t back = kKdaTaps - tap;
#pragma unroll
      for (int i = 0; i < kItems; ++i) window_[tap][i] = 0;
      if (!chunk.first()) {
        load_channels(in_.x + at(chunk.first_row - back), window_[tap]);
      } else if (chunk.stretch == 0 && back <= in_.before_rows) {
        load_channels(in_.before + at(in_.before_rows - back), window_[tap]);
      }
    }
  }

  __device__ void advance() {
#pragma unroll
    for (int tap = 0; tap + 1 < kKdaTaps; ++tap) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) window_[tap][i] = window_[tap + 1][i];
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) window_[kKdaTaps - 1][i] = widen(next_x_[i]);
  }

  __device__ A sum(int i) const {
    A z = 0;
#pragma unroll
    for (int tap = 0; tap < kKdaTaps; ++tap) z += weight_[tap][i] * window_[tap][i];
    return z;
  }

  // d_z holds the gradient of the row's result. Of a unit row y r scale with r = 1 / |y|:
  // dy = r (d - u <u, d>), d = scale times that, u = y r.
  __device__ void differentiate_row(A (&d_z)[kItems]) const {
    A slope[kItems];  // of SiLU
    A y[kItems];
    A squares = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const A z = sum(i);
      const A open = logistic(z);
      y[i] = z * open;
      slope[i] = open + y[i] * (A{1} - open);
      squares += y[i] * y[i];
    }
    if (is_unit_row()) {
      const A inverse = A{1} / sqrt(warp_sum(squares) + static_cast<A>(kUnitEpsilon));
      A dot = 0;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        d_z[i] *= scale();
        y[i] *= inverse;
        dot += y[i] * d_z[i];
      }
      dot = warp_sum(dot);
#pragma unroll
      for (int i = 0; i < kItems; ++i) d_z[i] = inverse * (d_z[i] - y[i] * dot);
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) d_z[i] *= slope[i];
  }

  // Row `row` of x stands under tap j of the convolution of row + taps - 1 - j.
  __device__ void write_d_x(const KdaChunk& chunk, int64_t row, const A (&d_z)[kKdaTaps][kItems],
                            const KdaConvolutionGradients<T>& out) const {
    const bool own = row >= chunk.first_row;
    const int64_t before = in_.before_rows + row - chunk.first_row;
    if (!own && (!chunk.first() || chunk.stretch != 0 || before < 0)) return;
    A d_x[kItems] = {};
#pragma unroll
    for (int tap = 0; tap < kKdaTaps; ++tap) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) d_x[i] += weight_[tap][i] * d_z[kKdaTaps - 1 - tap][i];
    }
    if (own) {
      store_channels(out.x + at(row), d_x);
    } else {
      store_channels(out.before + at(before), d_x);
    }
  }

  const KdaPlaces& places_;
  const KdaConvolution<T>& in_;
  int64_t unit_;
  int channel_;
  A weight_[kKdaTaps][kItems];
  A window_[kKdaTaps][kItems];  // rows of x under the taps
  T next_x_[kItems];            // the row after them
  A d_weight_[kKdaTaps][kItems] = {};
};

// The warp's number; warps of one group of chunks stand side by side.
__device__ inline int64_t grid_warp() {
  return grid_thread() / kWarp;
}

template <typename T, int W>
__global__ void forward_kernel(const __grid_constant__ KdaPlaces places,
                               const __grid_constant__ KdaConvolution<T> in, T* qkv) {
  const int64_t units = 3 * places.heads;
  const int64_t chunk = grid_warp() / units;
  if (chunk >= places.num_chunks) return;
  ConvolutionWarp<T, W>(places, in, grid_warp() % units).convolve(places.chunks[chunk], qkv);
}

template <typename T, int W>
__global__ void backward_kernel(const __grid_constant__ KdaPlaces places,
                                const __grid_constant__ KdaConvolution<T> in, const T* d_qkv,
                                const __grid_constant__ KdaConvolutionGradients<T> out,
                                int64_t groups) {
  const int64_t units = 3 * places.heads;
  const int64_t group = grid_warp() / units;
  if (group >= groups) return;
  ConvolutionWarp<T, W> warp(places, in, grid_warp() % units);
  const int64_t end = places.num_chunks * (group + 1) / groups;
  for (int64_t chunk = places.num_chunks * group / groups; chunk < end; ++chunk) {
    warp.differentiate(places.chunks[chunk], d_qkv, out);
  }
  warp.write_partials(out.partials + group * units * kKdaTaps * places.width);
}

}  // namespace

template <typename T>
void kda_inputs_forward(const KdaPlaces& places, const KdaConvolution<T>& in, T* qkv,
                        Stream stream) {
  for_row_width(places.width, [&]<int W>() {
    launch("short convolution", forward_kernel<T, W>,
           divide_up(places.num_chunks * 3 * places.heads, kThreads / kWarp), kThreads, stream,
           places, in, qkv);
  });
}

int64_t kda_convolution_partials(const KdaPlaces& places) {
  return groups_of(places) * 3 * places.heads * kKdaTaps * places.width;
}

template <typename T>
void kda_inputs_backward(const KdaPlaces& places, const KdaConvolution<T>& in, const T* d_qkv,
                         const KdaConvolutionGradients<T>& out, Stream stream) {
  const int64_t groups = groups_of(places);
  for_row_width(places.width, [&]<int W>() {
    launch("gradient of the short convolution", backward_kernel<T, W>,
           divide_up(groups * 3 * places.heads, kThreads / kWarp), kThreads, stream, places, in,
           d_qkv, out, groups);
  });
  add_partials("sum of the convolution's partial gradients", out.partials, groups,
               3 * places.heads * kKdaTaps * places.width, out.weight, stream);
}

#define LONGSPAN_INSTANTIATE(T)                                                             \
  template void kda_inputs_forward(const KdaPlaces&, const KdaConvolution<T>&, T*, Stream); \
  template void kda_inputs_backward(const KdaPlaces&, const KdaConvolution<T>&, const T*,   \
                                    const KdaConvolutionGradients<T>&, Stream);
LONGSPAN_INSTANTIATE(Bf16)
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan::cuda
