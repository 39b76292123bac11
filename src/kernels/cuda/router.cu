#include "kernels/cuda/router.h"

#include "kernels/cuda/launch.cuh"

namespace longspan::cuda {
namespace {

constexpr double kSumEpsilon = 1e-20;  // as kernels/cpu/router.cpp
constexpr int kTokensPerBlock = kThreads / kWarp;
constexpr int kMaxItems = 32;  // experts of one lane

template <typename Real>
__device__ Real logistic(Real value) {
  return Real{1} / (Real{1} + exp(-value));
}

// Expert of item `item` of a lane: ascending along a lane's items.
__device__ int expert_of(int item, int lane) {
  return item * kWarp + lane;
}

template <typename Real>
struct Best {
  Real value;
  int id;  // -1: none left
};

template <typename Real>
__device__ bool goes_before(const Best<Real>& a, const Best<Real>& b) {
  if (a.id < 0 || b.id < 0) return b.id < 0 && a.id >= 0;
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

template <typename Real>
__device__ Best<Real> warp_best(Best<Real> best) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const Best<Real> other{__shfl_xor_sync(0xffffffffu, best.value, distance),
                           __shfl_xor_sync(0xffffffffu, best.id, distance)};
    if (goes_before(other, best)) best = other;
  }
  return best;
}

template <typename Real, int kItems>
__global__ void choose_kernel(const Real* logits, const Real* bias, int64_t tokens, int experts,
                              int top_k, int32_t* ids) {
  const int64_t row = int64_t{blockIdx.x} * kTokensPerBlock + static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (row >= tokens) return;
  Real ranking[kItems];
  uint32_t left = 0;  // items that are not chosen yet
#pragma unroll
  for (int item = 0; item < kItems; ++item) {
    const int expert = expert_of(item, lane);
    ranking[item] = 0;
    if (expert >= experts) continue;
    const Real value =
        logistic(logits[row * experts + expert]) + (bias != nullptr ? bias[expert] : Real{0});
    ranking[item] = isnan(value) ? static_cast<Real>(-INFINITY) : value;
    left |= 1u << item;
  }
  int chosen = -1;  // by lane k: the k-th best
  for (int k = 0; k < top_k; ++k) {
    Best<Real> best{0, -1};
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      if ((left >> item & 1u) == 0) continue;
      const Best<Real> other{ranking[item], expert_of(item, lane)};
      if (goes_before(other, best)) best = other;
    }
    best = warp_best(best);
    if (best.id % kWarp == lane) left &= ~(1u << best.id / kWarp);
    if (lane == k) chosen = best.id;
  }
  // Ascending: each id goes to the place that counts the smaller ones.
  int place = 0;
  for (int k = 0; k < top_k; ++k) {
    if (__shfl_sync(0xffffffffu, chosen, k) < chosen) ++place;
  }
  if (lane < top_k) ids[row * top_k + place] = chosen;
}

template <typename Real>
__global__ void weights_kernel(const Real* logits, const int32_t* ids, int64_t tokens, int experts,
                               int top_k, bool normalized, Real scale, Real* scores,
                               Real* weights) {
  const int64_t row = grid_thread();
  if (row >= tokens) return;
  Real sum = 0;
  for (int k = 0; k < top_k; ++k) {
    const Real score = logistic(logits[row * experts + ids[row * top_k + k]]);
    scores[row * top_k + k] = score;
    sum += score;
  }
  const Real factor = normalized ? scale / (sum + static_cast<Real>(kSumEpsilon)) : scale;
  for (int k = 0; k < top_k; ++k) weights[row * top_k + k] = scores[row * top_k + k] * factor;
}

// A warp for each token.
template <typename Real>
__global__ void backward_kernel(const int32_t* ids, const Real* scores, const Real* weights,
                                const Real* dweights, int64_t tokens, int experts, int top_k,
                                bool normalized, Real scale, Real* dlogits) {
  const int64_t row = int64_t{blockIdx.x} * kTokensPerBlock + static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (row >= tokens) return;
  Real* out = dlogits + row * experts;
  for (int expert = lane; expert < experts; expert += kWarp) out[expert] = 0;
  Real pull = 0;
  Real divisor = 1;
  if (normalized) {
    Real sum = 0;
    for (int k = 0; k < top_k; ++k) {
      pull += dweights[row * top_k + k] * weights[row * top_k + k];
      sum += scores[row * top_k + k];
    }
    divisor = sum + static_cast<Real>(kSumEpsilon);
  }
  __syncwarp();
  if (lane >= top_k) return;
  const Real score = scores[row * top_k + lane];
  const Real dscore = (scale * dweights[row * top_k + lane] - pull) / divisor;
  out[ids[row * top_k + lane]] = dscore * score * (Real{1} - score);
}

void check_shape(const RouterShape& shape) {
  LONGSPAN_CHECK(*router_refusal(shape) == '\0', "router: ", router_refusal(shape));
}

}  // namespace

const char* router_refusal(const RouterShape& shape) {
  if (shape.experts > kMaxItems * kWarp) return "the GPU kernels take at most 1024 experts";
  if (shape.top_k > kWarp) return "the GPU kernels choose at most 32 experts for a token";
  return "";
}

template <typename Real>
void router_choose(const RouterShape& shape, const Real* logits, const Real* bias, int64_t tokens,
                   int32_t* ids, Stream stream) {
  check_shape(shape);
  const auto of_items = [&]<int kItems>() {
    launch("router choice", choose_kernel<Real, kItems>, divide_up(tokens, kTokensPerBlock),
           kThreads, stream, logits, bias, tokens, shape.experts, shape.top_k, ids);
  };
  if (shape.experts <= kWarp) return of_items.template operator()<1>();
  if (shape.experts <= 4 * kWarp) return of_items.template operator()<4>();
  if (shape.experts <= 12 * kWarp) return of_items.template operator()<12>();
  of_items.template operator()<kMaxItems>();
}

template <typename Real>
void router_weights(const RouterShape& shape, const Real* logits, const int32_t* ids,
                    int64_t tokens, Real* scores, Real* weights, Stream stream) {
  check_shape(shape);
  launch("router weights", weights_kernel<Real>, divide_up(tokens, kThreads), kThreads, stream,
         logits, ids, tokens, shape.experts, shape.top_k, shape.normalized, shape.scale, scores,
         weights);
}

template <typename Real>
void router_backward(const RouterShape& shape, const int32_t* ids, const Real* scores,
                     const Real* weights, const Real* dweights, int64_t tokens, Real* dlogits,
                     Stream stream) {
  check_shape(shape);
  launch("router backward", backward_kernel<Real>, divide_up(tokens, kTokensPerBlock), kThreads,
         stream, ids, scores, weights, dweights, tokens, shape.experts, shape.top_k,
         shape.normalized, shape.scale, dlogits);
}

#define LONGSPAN_INSTANTIATE(Real)                                                              \
  template void router_choose(const RouterShape&, const Real*, const Real*, int64_t, int32_t*,  \
                              Stream);                                                          \
  template void router_weights(const RouterShape&, const Real*, const int32_t*, int64_t, Real*, \
                               Real*, Stream);                                                  \
  template void router_backward(const RouterShape&, const int32_t*, const Real*, const Real*,   \
                                const Real*, int64_t, Real*, Stream);
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan::cuda
