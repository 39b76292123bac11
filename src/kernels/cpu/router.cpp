#include "kernels/cpu/router.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/vector_math.h"

namespace longspan {
namespace {

constexpr double kSumEpsilon = 1e-20;

template <typename Real>
Real sum_of(const Real* values, int64_t count) {
  Real sum = 0;
  for (int64_t k = 0; k < count; ++k) sum += values[k];
  return sum;
}

}  // namespace

template <typename Real>
void router_choose(const RouterShape& shape, const Real* logits, const Real* bias, Range rows,
                   int32_t* ids) {
  std::vector<Real> ranking(static_cast<size_t>(shape.experts));
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const Real* in = logits + row * shape.experts;
    for (int64_t e = 0; e < shape.experts; ++e) {
      ranking[static_cast<size_t>(e)] = vector_logistic(in[e]) + (bias != nullptr ? bias[e] : 0);
    }
    // The best so far, best first. Experts come in ascending order and move up only past smaller
    // ones, so of equal ones the lower index stays in front.
    int32_t* best = ids + row * shape.top_k;
    auto value_at = [&](int64_t place) { return ranking[static_cast<size_t>(best[place])]; };
    int64_t held = 0;
    for (int64_t e = 0; e < shape.experts; ++e) {
      const Real value = ranking[static_cast<size_t>(e)];
      if (held == shape.top_k && !(value > value_at(held - 1))) continue;
      int64_t place = held < shape.top_k ? held++ : held - 1;
      for (; place > 0 && value > value_at(place - 1); --place) best[place] = best[place - 1];
      best[place] = static_cast<int32_t>(e);
    }
    std::sort(best, best + shape.top_k);
  }
}

template <typename Real>
void router_weights(const RouterShape& shape, const Real* logits, const int32_t* ids, Range rows,
                    Real* scores, Real* weights) {
  const int64_t k_max = shape.top_k;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    Real* score = scores + row * k_max;
    for (int64_t k = 0; k < k_max; ++k) {
      score[k] = vector_logistic(logits[row * shape.experts + ids[row * k_max + k]]);
    }
    const Real factor =
        static_cast<Real>(shape.scale) /
        (shape.normalized ? sum_of(score, k_max) + static_cast<Real>(kSumEpsilon) : Real{1});
    for (int64_t k = 0; k < k_max; ++k) weights[row * k_max + k] = score[k] * factor;
  }
}

template <typename Real>
void router_backward(const RouterShape& shape, const int32_t* ids, const Real* scores,
                     const Real* weights, const Real* dweights, Range rows, Real* dlogits) {
  const int64_t k_max = shape.top_k;
  const Real scale = static_cast<Real>(shape.scale);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const Real* score = scores + row * k_max;
    const Real* dw = dweights + row * k_max;
    Real pull = 0;
    Real divisor = 1;
    if (shape.normalized) {
      for (int64_t k = 0; k < k_max; ++k) pull += dw[k] * weights[row * k_max + k];
      divisor = sum_of(score, k_max) + static_cast<Real>(kSumEpsilon);
    }
    Real* out = dlogits + row * shape.experts;
    std::fill_n(out, shape.experts, Real{0});
    for (int64_t k = 0; k < k_max; ++k) {
      const Real dscore = (scale * dw[k] - pull) / divisor;
      out[ids[row * k_max + k]] = dscore * score[k] * (Real{1} - score[k]);
    }
  }
}

#define LONGSPAN_INSTANTIATE(Real)                                                            \
  template void router_choose(const RouterShape&, const Real*, const Real*, Range, int32_t*); \
  template void router_weights(const RouterShape&, const Real*, const int32_t*, Range, Real*, \
                               Real*);                                                        \
  template void router_backward(const RouterShape&, const int32_t*, const Real*, const Real*, \
                                const Real*, Range, Real*);
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan
