// Times the attention kernel on fused launches of equal tasks.
//
// Why fused and equal: a server runs its tasks in one launch, so what a task costs is what it adds
// to one. Each task has rows of its own, as in a plan; heads are shared by all.
//
//   const TaskTimes times = time_equal_tasks({.query_heads = 4, .key_heads = 2, .head_width = 64},
//                                            {.count = 8, .query_rows = 128, .key_rows = 4096},
//                                            {.repeats = 5});
//   times.forward.median_s / 8     // seconds for each task, the launch included
//
// float32 on CPU, bfloat16 on a GPU, with float32 sums as runs of several ranks have them, whole
// documents without, on the kernel that the runtime uses (attention/attention_kernel.h). What a
// GPU's kernel does to ragged rows is in its times: rows of short tasks do not lie in one piece and
// are packed, tasks of many rows are filled up. Calling thread and its torch threads.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "kernels/attention_shape.h"
#include "profile/repeated_time.h"

namespace longspan {

struct TimedHeads {
  int64_t query_heads = 4;
  int64_t key_heads = 2;
  int64_t head_width = 64;
};

struct EqualTasks {
  int64_t count = 1;
  int64_t query_rows = 1;
  int64_t key_rows = 1;
  bool causal = false;  // the last query sees the last key; else all queries see all keys
};

struct TaskTimes {
  RepeatedTime forward;
  RepeatedTime backward;
};

// Of the values on that device.
at::ScalarType timed_type(at::Device device);
AttentionShape timed_shape(const TimedHeads& heads);

// On `options.device`.
TaskTimes time_equal_tasks(const TimedHeads& heads, const EqualTasks& tasks,
                           const TimingOptions& options);

}  // namespace longspan
