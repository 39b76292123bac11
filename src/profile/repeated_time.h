// Times the same work several times: median and how well the repeats agree.
//
//   const RepeatedTime time = time_repeatedly({.repeats = 5, .runs = 20}, [&] { launch(); });
//   time.median_s;  time.spread;
//
// Why the median and not the least: plans are made for what usually happens. A first run warms
// caches and is not counted. Where one thread does the work, its own CPU seconds are taken: other
// programs on the machine then disturb them little; else the wall clock is. Of a GPU it is the time
// between two marks on the calling thread's queue, with other work queued before them for as long
// as the host needs to queue a repeat: in a training step, too, the host is ahead of the device.
// Runs the work on the calling thread.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <vector>

namespace longspan {

struct TimingOptions {
  int repeats = 5;
  int runs = 1;  // of the work in each repeat
  bool cpu_seconds = false;
  at::Device device = at::kCPU;
};

struct RepeatedTime {
  double median_s = 0;  // of one run
  double spread = 0;    // half the width of the middle half of the repeats, over the median
};

RepeatedTime summarize_times(std::vector<double> seconds);

RepeatedTime time_repeatedly(const TimingOptions& options, const std::function<void()>& work);

}  // namespace longspan
