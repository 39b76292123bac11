#include <c10/cuda/CUDAEvent.h>

#include <chrono>

#include "device/device.h"
#include "device/device_marks.h"

namespace longspan {

using Clock = std::chrono::steady_clock;

// A build with CUDA also runs on CPU.
struct DeviceMarks::Moments {
  explicit Moments(at::Device of) : device(of) {
    if (device.is_cpu()) return;
    finish_work(device);
    origin.record();
    origin.synchronize();
    start = Clock::now();
  }

  at::Device device;
  Clock::time_point start = Clock::now();
  std::vector<Clock::time_point> of_host;
  c10::cuda::CUDAEvent origin{cudaEventDefault};
  std::vector<std::unique_ptr<c10::cuda::CUDAEvent>> of_device;
};

DeviceMarks::DeviceMarks(at::Device device) : moments_(std::make_unique<Moments>(device)) {}
DeviceMarks::~DeviceMarks() = default;
DeviceMarks::DeviceMarks(DeviceMarks&&) noexcept = default;

void DeviceMarks::mark() {
  if (moments_->device.is_cpu()) {
    moments_->of_host.push_back(Clock::now());
    return;
  }
  moments_->of_device.push_back(std::make_unique<c10::cuda::CUDAEvent>(cudaEventDefault));
  moments_->of_device.back()->record();
}

std::vector<double> DeviceMarks::seconds() const {
  std::vector<double> seconds;
  for (const Clock::time_point& moment : moments_->of_host) {
    seconds.push_back(std::chrono::duration<double>(moment - moments_->start).count());
  }
  for (const auto& event : moments_->of_device) {
    event->synchronize();
    seconds.push_back(1e-3 * static_cast<double>(moments_->origin.elapsed_time(*event)));
  }
  return seconds;
}

}  // namespace longspan
