// Private to kernels/cuda: the maps of one token's hyper-connection, formed by one warp.
//
//   const Maps<A, N> maps = maps_of<A, N>(raw, base, scale);       // lane i % N has row i
//   Sinkhorn<A, N> sinkhorn(rounds, epsilon);
//   sinkhorn.forward(row, kept);                 // kept: null, or what backward needs, shared
//   sinkhorn.backward(kept, gradient);
//
// All 32 lanes work, in groups of N with the same numbers: shuffles inside a group need no mask of
// their own. N is a power of two.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace longspan::cuda {

constexpr int kMaxSinkhornSteps = 63;  // 32 rounds

template <typename A>
__device__ inline A logistic_of(A value) {
  return A{1} / (A{1} + exp(-value));
}

// A division without the branches of the exact one: four of those in a row took most of a kernel's
// time. Divisors here are sums of a few numbers near one; float32 results are within two units in
// the last place.
__device__ inline float quotient(float value, float divisor) {
  return __fdividef(value, divisor);
}
__device__ inline double quotient(double value, double divisor) {
  return value / divisor;
}

// Over the lanes of a group, in a fixed order.
template <int N, typename A>
__device__ inline A group_sum(A value) {
#pragma unroll
  for (int distance = N / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

__device__ inline int lane_in_group(int group) {
  return static_cast<int>(threadIdx.x) % group;
}

template <typename A, int N>
struct Maps {
  A read_gate;   // the plain logistic, of stream i
  A write_gate;  // the plain logistic, of stream i
  A softmax[N];  // row i
};

template <typename A, int N>
__device__ inline Maps<A, N> maps_of(const A* raw, const A* base, const A* scale) {
  const int i = lane_in_group(N);
  Maps<A, N> maps;
  maps.read_gate = logistic_of(scale[0] * raw[i] + base[i]);
  maps.write_gate = logistic_of(scale[1] * raw[N + i] + base[N + i]);
  A largest{};
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const int at = 2 * N + i * N + j;
    maps.softmax[j] = scale[2] * raw[at] + base[at];
    largest = j == 0 || maps.softmax[j] > largest ? maps.softmax[j] : largest;
  }
  A sum = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) sum += maps.softmax[j] = exp(maps.softmax[j] - largest);
#pragma unroll
  for (int j = 0; j < N; ++j) maps.softmax[j] /= sum;
  return maps;
}

// What each normalisation left and divided by, for backward.
template <typename A, int N>
struct SinkhornSteps {
  A results[kMaxSinkhornSteps][N][N];
  A divisors[kMaxSinkhornSteps][N];
};

// Columns, rows, columns, ..., columns: each line over (its sum + epsilon).
template <typename A, int N>
struct Sinkhorn {
  int steps;
  A epsilon;

  // `row` is row i of the softmax and becomes that of the mix matrix.
  __device__ void forward(A* row, SinkhornSteps<A, N>* kept) const {
    const int i = lane_in_group(N);
#pragma unroll
    for (int j = 0; j < N; ++j) row[j] += epsilon;
    for (int step = 0; step < steps; ++step) {
      if (step % 2 == 0) {
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const A divisor = epsilon + group_sum<N>(row[j]);
          row[j] = quotient(row[j], divisor);
          if (kept != nullptr && i == j) kept->divisors[step][j] = divisor;
        }
      } else {
        A divisor = epsilon;
#pragma unroll
        for (int j = 0; j < N; ++j) divisor += row[j];
#pragma unroll
        for (int j = 0; j < N; ++j) row[j] = quotient(row[j], divisor);
        if (kept != nullptr) kept->divisors[step][i] = divisor;
      }
      if (kept == nullptr) continue;
#pragma unroll
      for (int j = 0; j < N; ++j) kept->results[step][i][j] = row[j];
    }
  }

  // y = x / (sum x + epsilon):  dx = (dy - <dy, y>) / (sum x + epsilon). Row i of the gradient of
  // the result becomes that of the softmax.
  __device__ void backward(const SinkhornSteps<A, N>& kept, A* gradient) const {
    const int i = lane_in_group(N);
    __syncwarp();
    for (int step = steps - 1; step >= 0; --step) {
      const A* y = kept.results[step][i];
      if (step % 2 == 0) {
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const A dot = group_sum<N>(gradient[j] * y[j]);
          gradient[j] = quotient(gradient[j] - dot, kept.divisors[step][j]);
        }
      } else {
        A dot = 0;
#pragma unroll
        for (int j = 0; j < N; ++j) dot += gradient[j] * y[j];
#pragma unroll
        for (int j = 0; j < N; ++j)
          gradient[j] = quotient(gradient[j] - dot, kept.divisors[step][i]);
      }
    }
  }
};

}  // namespace longspan::cuda
