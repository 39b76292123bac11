// Times the link between two ranks that are threads of this process: on CPU, or each on a GPU of
// its own.
//
//   const MeasuredLink link = measure_thread_link({.repeats = 5});
//   link.figures.bytes_per_s;
//
// Both ranks send at the same time, as in an exchange. The figures follow from rounds of one tiny
// message, of many, and of large ones, until the memory of the device has them, posting included.
// Starts two threads and waits for them.
#pragma once

#include "cost/cluster_spec.h"
#include "profile/repeated_time.h"

namespace longspan {

struct MeasuredLink {
  LinkClass figures;
  double spread = 0;  // the worst of the three measurements (repeated_time.h)
};

// `options.runs` rounds of tiny messages in each repeat, a hundredth as many of large ones. On
// `options.device`: of two GPUs, which must be visible.
MeasuredLink measure_thread_link(const TimingOptions& options);

}  // namespace longspan
