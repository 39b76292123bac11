// Moments of a thread's work on the device, for traces.
//
//   DeviceMarks marks(device);
//   marks.mark();  ... queue work ...  marks.mark();
//   finish_work(device);
//   marks.seconds()       // of each mark, since the construction
//
// On a GPU a mark is the moment at which the work queued before it was done, read from an event; on
// CPU it is a clock. It costs a few microseconds. One thread, the one whose work is marked.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <vector>

namespace longspan {

class DeviceMarks {
 public:
  // On a GPU it waits for all work queued before: device and host clock start together.
  explicit DeviceMarks(at::Device device);
  ~DeviceMarks();
  DeviceMarks(DeviceMarks&&) noexcept;

  void mark();
  std::vector<double> seconds() const;

 private:
  struct Moments;
  std::unique_ptr<Moments> moments_;
};

}  // namespace longspan
