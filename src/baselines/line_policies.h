// Policies that see the micro-batch as a line: data parallelism and the context-parallel slicings.
//
//   stay_home          every query where the layout has it; the home plan
//   data_parallel      a pack for each rank, nothing travels
//   contiguous         rank r takes the r-th slice; all keys are gathered
//   zigzag             2P slices, rank r takes r and 2P - 1 - r; all keys are gathered
//   sorted_blocks      (PTRR) 128-row blocks by falling number of non-empty key blocks, dealt in
//                      snake order; all keys are gathered
//   chunk_heap         chunks by falling work, each to the least loaded rank that has not its
//                      equal number of chunks yet; keys go where they are needed
//
// The context-parallel ones treat all ranks as one group. Pure; any thread.
#pragma once

#include "baselines/baseline.h"

namespace longspan {

Baseline stay_home(const BaselineInput& input);
// `pack_borders`: line positions at which packs begin, and the line's end; one pack for each rank.
Baseline data_parallel(const BaselineInput& input, const std::vector<int64_t>& pack_borders);
Baseline contiguous(const BaselineInput& input);
Baseline zigzag(const BaselineInput& input);
Baseline sorted_blocks(const BaselineInput& input);
Baseline chunk_heap(const BaselineInput& input, int64_t chunk_tokens);

}  // namespace longspan
