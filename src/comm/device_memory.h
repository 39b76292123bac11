// What a communicator must know of a device to move memory that lies on it.
//
// Why: the transports stand in the torch-free core and know no CUDA. On a device, work is queued
// and runs later: "the buffer is ready" is a moment in the queue of the thread that filled it. A
// transport passes such moments along with its messages, so ranks that share a process exchange
// device memory without the host waiting for anything.
//
//   ThreadGroup group(4, {.device_memory = memory});     // cuda_memory() of device/cuda_memory.h
//
// Contract: every rank has queues of its own, found by the calling thread. copy() and duplicate()
// run beside the thread's own work, sum() within it. Any thread may call anything here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace longspan {

struct DeviceCopy {
  void* target = nullptr;
  const void* source = nullptr;
  size_t bytes = 0;
};

class DeviceMemory {
 public:
  // A point in some thread's queue; null: the beginning of time.
  using Moment = std::shared_ptr<const void>;

  virtual ~DeviceMemory() = default;

  virtual bool owns(const void* address) const = 0;

  // The end of what the calling thread has queued so far.
  virtual Moment moment() = 0;
  // What the calling thread queues from now on starts after `moment`.
  virtual void wait_for(const Moment& moment) = 0;

  // Start after all of `after`, in any order; the result is the moment at which all are done.
  virtual Moment copy(std::span<const DeviceCopy> copies, std::span<const Moment> after) = 0;
  // A copy in memory of its own, which it holds; readable from *done on.
  virtual std::shared_ptr<const std::byte> duplicate(const std::byte* source, size_t bytes,
                                                     const Moment& after, Moment* done) = 0;
  // For what the calling thread queues; what it holds is free again for what it queues later.
  virtual std::shared_ptr<std::byte> room(size_t bytes) = 0;
  // sum = parts[0] + parts[1] + ..., queued by the calling thread.
  virtual void sum(std::span<const float* const> parts, int64_t elements, float* sum) = 0;
  virtual void sum(std::span<const double* const> parts, int64_t elements, double* sum) = 0;
  // The host waits for all that the calling thread has queued, copies too. For failures only.
  virtual void finish() = 0;
};

}  // namespace longspan
