// The order of a micro-batch's documents on the line for which chunks have like attention work.
//
// Why: chunks have equal tokens, and two of them are in flight at a time; what one exchanges hides
// under what the other computes only if their attention costs about the same. The order inside a
// micro-batch is free: a step's loss and gradients are sums over it.
//
//   const std::vector<size_t> order = even_chunk_order({9000, 100, 9000, 120}, 2);   // 0 1 2 3
//
// Documents longer than a chunk come first, in line; the others go, longest first, to the chunk
// with the least work that has room for them. Deterministic; independent of the number of ranks.
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace longspan {

// Indices into `lengths` (each >= 1) in line order. The given order if there is one chunk.
std::vector<size_t> even_chunk_order(const std::vector<int64_t>& lengths, int chunks);

}  // namespace longspan
