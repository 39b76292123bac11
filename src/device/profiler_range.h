// A named stretch of a thread's calls, for profilers of GPUs (NVTX): a timeline then shows which
// operation of the step queued a kernel.
//
//   const ProfilerRange range("launch attention, layer 3");
//
// Without CUDA in the build it does nothing; without a profiler attached it costs a call. One
// thread; ranges nest.
#pragma once

#include <string>

namespace longspan {

class ProfilerRange {
 public:
  explicit ProfilerRange(const std::string& name);
  ~ProfilerRange();
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
};

}  // namespace longspan
