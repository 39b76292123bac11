// Measures the machine's matrix-product rate: the denominator of MFU.
//
//   const PeakFlops peak = measure_peak_flops(at::kFloat);   // with the threads that torch uses
//   now print(peak.description);   // "92 GFLOP/s (measured: Float matrix product of 1024^3, best
//   of 9)"
//
// The best of at least five products, and of more while one is still faster than all before it: on
// a machine that is busy some are slow. Takes about a tenth of a second. Call it before the ranks
// start, with all their threads.
#pragma once

#include <c10/core/TensorOptions.h>

#include "observe/peak_flops.h"

namespace longspan {

// Of the type and on the device of `tensors`.
PeakFlops measure_peak_flops(const c10::TensorOptions& tensors);

}  // namespace longspan
