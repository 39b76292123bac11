// Time that the device spends in marked stretches of a thread's work.
//
//   DeviceTimer attention(device);
//   attention.start();  ... queue work ...  attention.stop();      // many times
//   attention.take_seconds()            // after the work is done: on a GPU, after finish_work()
//
// Why not a clock: on a GPU, queueing takes no time and the work happens later. On CPU it is a
// clock. One thread.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <memory>

namespace longspan {

class DeviceTimer {
 public:
  explicit DeviceTimer(at::Device device);
  ~DeviceTimer();
  DeviceTimer(DeviceTimer&&) noexcept;

  void start();
  void stop();
  // All stretches since the last call together.
  double take_seconds();

 private:
  struct Marks;  // on the device's queue; null on CPU
  std::unique_ptr<Marks> marks_;
  std::chrono::steady_clock::time_point started_;
  double seconds_ = 0;
};

}  // namespace longspan
