// What each operation of one step took, on one rank, and which rows it waited for: the trace that
// --trace writes.
//
//   StepTrace trace(comm.rank(), device);
//   executor.run(schedule, micro_batches, {.trace = &trace});      // calls begin() and end()
//   write_step_trace(path, trace.events(schedule, micro_batches), comm);
//
// Tracks of a rank: "work", the time of the device that computes; on a GPU "weights and gradients",
// too, which has a queue of its own, and "host", the time in which the operation was queued. Arrows
// lead from the operation that sends the rows of an attention round to the one that waits for them
// on another rank. Times begin when the trace is made: make it behind a barrier. One rank, on its
// thread.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "device/device_marks.h"
#include "schedule/step_schedule.h"
#include "train/step_planner.h"

namespace longspan {

class ChromeTrace;

class StepTrace {
 public:
  StepTrace(int rank, at::Device device);

  void begin();
  void end();

  // JSON events (observe/chrome_trace.h). `schedule` is the one that ran; waits for the device.
  std::string events(const StepSchedule& schedule,
                     const std::vector<PlannedMicroBatch>& micro_batches) const;

 private:
  struct Stretch {
    double begin_us = 0;
    double end_us = 0;
  };
  double host_us() const;
  void add_arrows(const Operation& operation, const Stretch& work,
                  const std::vector<PlannedMicroBatch>& micro_batches, ChromeTrace* trace) const;

  int rank_;
  bool on_gpu_;
  DeviceMarks marks_;  // begin and end of each operation
  std::chrono::steady_clock::time_point start_;
  std::vector<Stretch> host_;
};

// Called by all ranks; rank 0 writes the file.
void write_step_trace(const std::filesystem::path& path, const std::string& own_events,
                      Communicator& comm);

}  // namespace longspan
