// Runs a function over parts of a range on the calling rank's threads.
//
// Why: torch's own loop template needs OpenMP flags and a torch header in every file that uses it;
// this one is compiled once.
//
//   parallel_ranges({0, rows}, 64, [&](Range part) { rms_norm_forward(..., part, ...); });
//
// Parts begin at multiples of `grain` from the range's begin; how many there are depends on the
// number of threads (at::set_num_threads of the calling thread). So work within one grain is always
// done by one call, and sums over a range go through fixed blocks: give every block a partial of
// its own and add the partials in order. Then bits do not depend on the number of threads.
// Blocks until all parts are done; an exception of any part leaves here. Inside another parallel
// region the range runs as one part.
#pragma once

#include <functional>

#include "base/range.h"

namespace longspan {

// An empty range calls nothing.
void parallel_ranges(Range range, int64_t grain, const std::function<void(Range)>& work);

}  // namespace longspan
