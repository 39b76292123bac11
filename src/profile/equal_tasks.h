// Times the attention kernel on fused launches of equal tasks.
//
// Why fused and equal: a server runs its tasks in one launch, so what a task costs is what it adds
// to one. Each task has rows of its own, as in a plan; heads are shared by all.
//
//   const LaunchTimes times = time_equal_tasks({.query_heads = 4, .key_heads = 2, .head_width =
//   64},
//                                            {.count = 8, .query_rows = 128, .key_rows = 4096},
//                                            {.repeats = 5});
//   times.forward.median_s / 8     // seconds for each task, the launch included
//
// On a GPU with float32 sums as runs of several ranks have them, whole documents without. What its
// kernel does to ragged rows is in its times: rows of short tasks do not lie in one piece and
// are packed, tasks of many rows are filled up. Calling thread and its torch threads.
#pragma once

#include <cstdint>

#include "profile/launch_times.h"

namespace longspan {

struct EqualTasks {
  int64_t count = 1;
  int64_t query_rows = 1;
  int64_t key_rows = 1;
  bool causal = false;  // the last query sees the last key; else all queries see all keys
};

// On `options.device`.
LaunchTimes time_equal_tasks(const TimedHeads& heads, const EqualTasks& tasks,
                             const TimingOptions& options);

}  // namespace longspan
