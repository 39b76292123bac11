#include "kernels/cuda/adamw.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/launch.cuh"

namespace longspan::cuda {
namespace {

template <typename Real>
struct Factors {
  Real scale;
  Real beta1;
  Real beta2;
  Real rest1;
  Real rest2;
  Real keep;
  Real rate;
  Real inverse_root;
  Real epsilon;
};

template <typename Real>
Factors<Real> factors_of(const AdamWStep& step) {
  const auto steps = static_cast<double>(step.step);
  const double correction1 = 1 - std::pow(step.beta1, steps);
  const double correction2 = 1 - std::pow(step.beta2, steps);
  return {.scale = static_cast<Real>(step.gradient_scale),
          .beta1 = static_cast<Real>(step.beta1),
          .beta2 = static_cast<Real>(step.beta2),
          .rest1 = static_cast<Real>(1 - step.beta1),
          .rest2 = static_cast<Real>(1 - step.beta2),
          .keep = static_cast<Real>(1 - step.learning_rate * step.weight_decay),
          .rate = static_cast<Real>(step.learning_rate / correction1),
          .inverse_root = static_cast<Real>(1 / std::sqrt(correction2)),
          .epsilon = static_cast<Real>(step.epsilon)};
}

template <typename Real, int kVector>
__global__ void update_kernel(Factors<Real> by, int64_t vectors, const Real* gradient, Real* weight,
                              Real* first_moment, Real* second_moment, Bf16* rounded) {
  const int64_t at = grid_thread() * kVector;
  if (at >= vectors * kVector) return;
  Real g[kVector];
  Real w[kVector];
  Real m[kVector];
  Real v[kVector];
  load<kVector>(gradient + at, g);
  load<kVector>(weight + at, w);
  load<kVector>(first_moment + at, m);
  load<kVector>(second_moment + at, v);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const Real scaled = g[i] * by.scale;
    m[i] = by.beta1 * m[i] + by.rest1 * scaled;
    v[i] = by.beta2 * v[i] + by.rest2 * scaled * scaled;
    w[i] = w[i] * by.keep - by.rate * m[i] / (sqrt(v[i]) * by.inverse_root + by.epsilon);
  }
  store<kVector>(weight + at, w);
  store<kVector>(first_moment + at, m);
  store<kVector>(second_moment + at, v);
  if (rounded != nullptr) {
    Packed<kVector, Bf16> packed;
#pragma unroll
    for (int i = 0; i < kVector; ++i) packed.values[i] = __float2bfloat16(static_cast<float>(w[i]));
    *reinterpret_cast<Packed<kVector, Bf16>*>(rounded + at) = packed;
  }
}

// Block b sums the pieces b, b + blocks, ... of kThreads elements.
template <typename Real>
__global__ void squares_kernel(const Real* values, int64_t elements, double* partials) {
  __shared__ double shared[kThreads / kWarp];
  double sum = 0;
  for (int64_t at = grid_thread(); at < elements; at += int64_t{gridDim.x} * kThreads) {
    const double value = values[at];
    sum += value * value;
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void add_all_kernel(const double* partials, int64_t count, double* sum) {
  __shared__ double shared[kThreads / kWarp];
  double total = 0;
  for (int64_t at = threadIdx.x; at < count; at += kThreads) total += partials[at];
  total = block_sum(total, shared);
  if (threadIdx.x == 0) *sum += total;
}

}  // namespace

template <typename Real>
void adamw_update(const AdamWStep& step, int64_t elements, const Real* gradient, Real* weight,
                  Real* first_moment, Real* second_moment, Bf16* rounded, Stream stream) {
  bool wide = elements % kWide<Real> == 0 &&
              reinterpret_cast<uintptr_t>(rounded) % (kWide<Real> * sizeof(Bf16)) == 0;
  for (const Real* array :
       {gradient, static_cast<const Real*>(weight), static_cast<const Real*>(first_moment),
        static_cast<const Real*>(second_moment)}) {
    wide = wide && is_aligned(array);
  }
  const int64_t vectors = wide ? elements / kWide<Real> : elements;
  launch("AdamW", wide ? update_kernel<Real, kWide<Real>> : update_kernel<Real, 1>,
         divide_up(vectors, kThreads), kThreads, stream, factors_of<Real>(step), vectors, gradient,
         weight, first_moment, second_moment, rounded);
}

template <typename Real>
void add_squared_norm(const Real* values, int64_t elements, double* partials, double* sum,
                      Stream stream) {
  if (elements == 0) return;
  const int64_t blocks = std::min(kSquaredNormPartials, divide_up(elements, 16 * kThreads));
  launch("squared norm", squares_kernel<Real>, blocks, kThreads, stream, values, elements,
         partials);
  launch("sum of squared norms", add_all_kernel, 1, kThreads, stream, partials, blocks, sum);
}

#define LONGSPAN_INSTANTIATE(Real)                                                               \
  template void adamw_update(const AdamWStep&, int64_t, const Real*, Real*, Real*, Real*, Bf16*, \
                             Stream);                                                            \
  template void add_squared_norm(const Real*, int64_t, double*, double*, Stream);
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan::cuda
