#include <chrono>

#include "device/device_marks.h"

namespace longspan {

using Clock = std::chrono::steady_clock;

struct DeviceMarks::Moments {
  Clock::time_point start = Clock::now();
  std::vector<Clock::time_point> marks;
};

DeviceMarks::DeviceMarks(at::Device) : moments_(std::make_unique<Moments>()) {}
DeviceMarks::~DeviceMarks() = default;
DeviceMarks::DeviceMarks(DeviceMarks&&) noexcept = default;

void DeviceMarks::mark() {
  moments_->marks.push_back(Clock::now());
}

std::vector<double> DeviceMarks::seconds() const {
  std::vector<double> seconds;
  for (const Clock::time_point& moment : moments_->marks) {
    seconds.push_back(std::chrono::duration<double>(moment - moments_->start).count());
  }
  return seconds;
}

}  // namespace longspan
