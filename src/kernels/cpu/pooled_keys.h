// Index keys of pools: in each channel a softmax over the pool's tokens weighs their keys.
//
//   pool_keys(keys, gates, {0, pools}, 4, width, pooled);
//
// keys, gates [pools * pool_tokens, width] contiguous, pooled [pools, width]; `Range` selects
// pools. Every pool is computed by itself, so bits do not depend on how pools are dealt to calls.
// There is no backward: the index is not trained. Thread contract: pure on disjoint pools.
#pragma once

#include <cstdint>

#include "base/range.h"

namespace longspan {

template <typename Real>
void pool_keys(const Real* keys, const Real* gates, Range pools, int64_t pool_tokens, int64_t width,
               Real* pooled);

}  // namespace longspan
