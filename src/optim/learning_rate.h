// The learning rate of each step: warm-up, then a shape.
//
//   constant  the peak
//   cosine    the peak, then half a cosine down to min_lr_ratio x peak over the last decay_steps
//   wsd       warm-up, stable, decay: the same with a straight line
//
// Warm-up is linear from 0: step s (from 0) of W runs at (s+1)/W of the peak, so no step is wasted
// on a rate of 0. The last step runs at the minimum exactly.
//
//   const LearningRateSchedule schedule = make_schedule("cosine", 3e-4, 1000, 20, 980, 0.1);
//   const double lr = schedule.at(step);        // step: optimizer steps done before this one
//
// A plain value; any thread. It depends on nothing but the step, so a resumed run goes on exactly.
#pragma once

#include <cstdint>
#include <string>

namespace longspan {

enum class ScheduleShape { kConstant, kCosine, kLinear };

struct LearningRateSchedule {
  ScheduleShape shape = ScheduleShape::kConstant;
  double peak = 0;
  int64_t steps = 0;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;
  double min_lr_ratio = 0;

  // Steps past the last one keep the rate of the last one.
  double at(int64_t step) const;
};

// `shape` as the configuration spells it: "constant", "cosine", "wsd". UserError if the parts do
// not fit: warm-up and decay longer than the run, or decay of a constant rate.
LearningRateSchedule make_schedule(const std::string& shape, double peak, int64_t steps,
                                   int64_t warmup_steps, int64_t decay_steps, double min_lr_ratio);

}  // namespace longspan
