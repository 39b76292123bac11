// The machine's matrix-product rate, measured: the denominator of MFU.
//
//   const PeakFlops peak = measure_peak_flops(at::kFloat);   // with the threads that torch uses
//   now print(peak.description);                                  // "92 GFLOP/s (float32 1024^3
//   product, best of 5)"
//
// Takes about a tenth of a second. Call it before the ranks start, with all their threads.
#pragma once

#include <c10/core/TensorOptions.h>

#include <string>

namespace longspan {

struct PeakFlops {
  double per_second = 0;
  std::string description;
};

// Of the type and on the device of `tensors`.
PeakFlops measure_peak_flops(const c10::TensorOptions& tensors);

}  // namespace longspan
