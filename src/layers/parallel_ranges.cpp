#include "layers/parallel_ranges.h"

#include <ATen/Parallel.h>

#include <algorithm>

#ifndef _OPENMP
#error "This file needs -fopenmp: without it at::parallel_for runs on one thread, without a word."
#endif

namespace longspan {

void parallel_ranges(Range range, int64_t grain, const std::function<void(Range)>& work) {
  const int64_t grains = (range.size() + grain - 1) / grain;
  at::parallel_for(0, grains, 1, [&](int64_t begin, int64_t end) {
    work({range.begin + begin * grain, std::min(range.end, range.begin + end * grain)});
  });
}

}  // namespace longspan
