#include "optim/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace longspan {

double LearningRateSchedule::at(int64_t step) const {
  LONGSPAN_CHECK(step >= 0, "step ", step);
  if (step < warmup_steps) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  }
  const int64_t decayed = std::min(step, steps - 1) - (steps - decay_steps) + 1;
  if (shape == ScheduleShape::kConstant || decayed <= 0) return peak;
  const double part = static_cast<double>(decayed) / static_cast<double>(decay_steps);
  const double left = shape == ScheduleShape::kCosine
                          ? 0.5 * (1.0 + std::cos(std::numbers::pi * part))
                          : 1.0 - part;
  return peak * (min_lr_ratio + (1.0 - min_lr_ratio) * left);
}

LearningRateSchedule make_schedule(const std::string& shape, double peak, int64_t steps,
                                   int64_t warmup_steps, int64_t decay_steps, double min_lr_ratio) {
  LearningRateSchedule schedule{.peak = peak,
                                .steps = steps,
                                .warmup_steps = warmup_steps,
                                .decay_steps = decay_steps,
                                .min_lr_ratio = min_lr_ratio};
  if (shape == "cosine") {
    schedule.shape = ScheduleShape::kCosine;
  } else if (shape == "wsd") {
    schedule.shape = ScheduleShape::kLinear;
  } else if (shape != "constant") {
    throw UserError(text("optimizer.schedule = \"", shape,
                         "\" is not a schedule; choose cosine, wsd or constant"));
  }
  if (shape == "constant" && decay_steps != 0) {
    throw UserError(text("optimizer.decay_steps = ", decay_steps,
                         " with optimizer.schedule = \"constant\", which does not decay; leave it "
                         "out, or choose the schedule wsd or cosine"));
  }
  if (warmup_steps < 0 || decay_steps < 0 || warmup_steps + decay_steps > steps) {
    throw UserError(text(
        "optimizer.warmup_steps = ", warmup_steps, " and optimizer.decay_steps = ", decay_steps,
        " do not fit optimizer.steps = ", steps, "; lower them, or leave them \"auto\""));
  }
  return schedule;
}

}  // namespace longspan
