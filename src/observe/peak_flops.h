// The machine's matrix-product rate: the denominator of MFU.
//
//   PeakFlops peak = measure_peak_flops(tensors);      // train/measure_peak.h
//   if (peak.raise_to(flops / step_s)) note(...);      // behind every step
//
// The rate is measured at a run's start, and if other programs kept the machine busy then, it is
// too low and shares of it could be above 100 %. No step is faster than the machine, so the rate of
// one that beats the measured peak becomes the peak, and the description says so. A plain value.
#pragma once

#include <string>

namespace longspan {

struct PeakFlops {
  double per_second = 0;
  std::string description;

  // Whether `step_per_second` is the first rate above the measured one.
  bool raise_to(double step_per_second);

 private:
  bool is_of_a_step_ = false;
  std::string measured_;
};

}  // namespace longspan
