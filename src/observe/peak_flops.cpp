#include "observe/peak_flops.h"

#include <cmath>

#include "base/error.h"

namespace longspan {

bool PeakFlops::raise_to(double step_per_second) {
  if (step_per_second <= per_second) return false;
  const bool is_first = !is_of_a_step_;
  if (is_first) measured_ = description;
  is_of_a_step_ = true;
  per_second = step_per_second;
  description = text(std::lround(per_second * 1e-9), " GFLOP/s (the fastest step; at the start ",
                     measured_, ")");
  return is_first;
}

}  // namespace longspan
