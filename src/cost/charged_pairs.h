// The pairs that a kernel works on for a task: whole tiles.
//
// Why: an attention kernel works on tiles of 128 queries x 128 keys and skips those that are
// wholly invisible; a document of 100 tokens costs it 16,384 pairs, not 5,050.
//
//   charged_pairs({0, 100}, {0, 100}) == 128 * 128
//
// Tiles count from the task's first query and first key. Constant time; pure.
#pragma once

#include <cstdint>

#include "base/range.h"

namespace longspan {

// Of the rectangle queries x keys (document positions) under the causal mask.
int64_t charged_pairs(const Range& queries, const Range& keys);

}  // namespace longspan
