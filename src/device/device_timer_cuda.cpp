#include <c10/cuda/CUDAEvent.h>

#include <utility>
#include <vector>

#include "device/device_timer.h"

namespace longspan {

struct DeviceTimer::Marks {
  using Event = std::unique_ptr<c10::cuda::CUDAEvent>;

  Event mark() {
    if (free.empty()) free.push_back(std::make_unique<c10::cuda::CUDAEvent>(cudaEventDefault));
    Event event = std::move(free.back());
    free.pop_back();
    event->record();
    return event;
  }

  std::vector<std::pair<Event, Event>> stretches;
  Event started;
  std::vector<Event> free;
};

DeviceTimer::DeviceTimer(at::Device device)
    : marks_(device.is_cpu() ? nullptr : std::make_unique<Marks>()) {}
DeviceTimer::~DeviceTimer() = default;
DeviceTimer::DeviceTimer(DeviceTimer&&) noexcept = default;

void DeviceTimer::start() {
  if (marks_) {
    marks_->started = marks_->mark();
  } else {
    started_ = std::chrono::steady_clock::now();
  }
}

void DeviceTimer::stop() {
  if (marks_) {
    marks_->stretches.emplace_back(std::move(marks_->started), marks_->mark());
  } else {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  }
}

double DeviceTimer::take_seconds() {
  if (marks_) {
    for (auto& [begin, end] : marks_->stretches) {
      end->synchronize();
      seconds_ += 1e-3 * static_cast<double>(begin->elapsed_time(*end));
      marks_->free.push_back(std::move(begin));
      marks_->free.push_back(std::move(end));
    }
    marks_->stretches.clear();
  }
  return std::exchange(seconds_, 0);
}

}  // namespace longspan
