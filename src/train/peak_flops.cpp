#include "train/peak_flops.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"

namespace longspan {

PeakFlops measure_peak_flops(c10::ScalarType type) {
  constexpr int64_t kSide = 1024;
  constexpr int kRepeats = 5;
  const at::Tensor a = at::full({kSide, kSide}, 0.7, type);
  double best_s = 1e30;
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    const at::Tensor product = at::mm(a, a);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (repeat > 0) best_s = std::min(best_s, elapsed.count());  // the first one warms up
  }
  PeakFlops peak{2.0 * kSide * kSide * kSide / best_s, ""};
  peak.description =
      text(std::lround(peak.per_second * 1e-9), " GFLOP/s (measured: ", c10::toString(type),
           " matrix product of ", kSide, "^3, best of ", kRepeats, ")");
  return peak;
}

}  // namespace longspan
