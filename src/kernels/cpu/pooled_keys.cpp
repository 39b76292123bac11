#include "kernels/cpu/pooled_keys.h"

#include <algorithm>
#include <cmath>

namespace longspan {

template <typename Real>
void pool_keys(const Real* keys, const Real* gates, Range pools, int64_t pool_tokens, int64_t width,
               Real* pooled) {
  for (int64_t pool = pools.begin; pool < pools.end; ++pool) {
    const Real* key = keys + pool * pool_tokens * width;
    const Real* gate = gates + pool * pool_tokens * width;
    for (int64_t channel = 0; channel < width; ++channel) {
      Real largest = gate[channel];
      for (int64_t slot = 1; slot < pool_tokens; ++slot) {
        largest = std::max(largest, gate[slot * width + channel]);
      }
      Real sum = 0;
      Real weighted = 0;
      for (int64_t slot = 0; slot < pool_tokens; ++slot) {
        const Real share = std::exp(gate[slot * width + channel] - largest);
        sum += share;
        weighted += share * key[slot * width + channel];
      }
      pooled[pool * width + channel] = weighted / sum;
    }
  }
}

template void pool_keys(const float*, const float*, Range, int64_t, int64_t, float*);
template void pool_keys(const double*, const double*, Range, int64_t, int64_t, double*);

}  // namespace longspan
