// Times one launch of the attention kernel, forward and backward, on random rows.
//
//   const LaunchTimes times = time_launch({.heads = heads, .slices = slices, .query_rows = 4096,
//                                        .key_rows = 8192}, {.repeats = 5, .device = gpu});
//
// float32 on CPU, bfloat16 on a GPU, on the kernel that the runtime uses
// (attention/attention_kernel.h), with all copies and sums that it makes of these slices. Calling
// thread and its torch threads.
#pragma once

#include <c10/core/ScalarType.h>

#include <vector>

#include "kernels/attention_shape.h"
#include "kernels/cpu/blocked_attention.h"
#include "profile/repeated_time.h"

namespace longspan {

struct TimedHeads {
  int64_t query_heads = 4;
  int64_t key_heads = 2;
  int64_t head_width = 64;
};

// Slices of one source of queries and one of keys.
struct TimedLaunch {
  TimedHeads heads = {};
  std::vector<AttentionSlice> slices = {};
  int64_t query_rows = 0;  // of the sources
  int64_t key_rows = 0;
  // Each row has its whole result from one slice: on a GPU it keeps the type of the values.
  bool one_part = false;
};

struct LaunchTimes {
  RepeatedTime forward;
  RepeatedTime backward;
};

// Of the values on that device.
at::ScalarType timed_type(at::Device device);
AttentionShape timed_shape(const TimedHeads& heads);

// On `options.device`.
LaunchTimes time_launch(const TimedLaunch& launch, const TimingOptions& options);

}  // namespace longspan
