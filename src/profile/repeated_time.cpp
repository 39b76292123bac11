#include "profile/repeated_time.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <time.h>

#include <algorithm>

#include "base/check.h"
#include "device/device.h"
#include "device/device_timer.h"

namespace longspan {
namespace {

double now_s(bool cpu_seconds) {
  timespec time{};
  ::clock_gettime(cpu_seconds ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Keeps the device busy with products.
class OtherWork {
 public:
  explicit OtherWork(at::Device device)
      : a_(at::randn({kSide, kSide}, at::TensorOptions(at::kBFloat16).device(device))) {
    DeviceTimer timer(device);
    for (int product = 0; product < 2; ++product) {  // the first one warms up
      timer.start();
      queue_one();
      timer.stop();
      one_s_ = timer.take_seconds();
    }
  }

  // For at least so long.
  void queue(double seconds) const {
    for (double queued_s = 0; queued_s < seconds; queued_s += one_s_) queue_one();
  }

 private:
  static constexpr int64_t kSide = 4096;

  void queue_one() const { at::mm(a_, a_); }

  at::Tensor a_;
  double one_s_ = 0;
};

RepeatedTime time_on_device(const TimingOptions& options, const std::function<void()>& work) {
  // Libraries plan what they meet first, and memory is asked for.
  constexpr int kWarmUps = 2;
  double host_s = 0;  // that queueing takes
  for (int run = 0; run < kWarmUps; ++run) {
    finish_work(options.device);
    const double start_s = now_s(/*cpu_seconds=*/false);
    work();
    host_s = now_s(/*cpu_seconds=*/false) - start_s;
  }
  const OtherWork other(options.device);
  DeviceTimer timer(options.device);
  std::vector<double> seconds;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    other.queue(2 * host_s * options.runs);
    timer.start();
    for (int run = 0; run < options.runs; ++run) work();
    timer.stop();
    seconds.push_back(timer.take_seconds() / options.runs);
  }
  return summarize_times(std::move(seconds));
}

}  // namespace

RepeatedTime summarize_times(std::vector<double> seconds) {
  LONGSPAN_CHECK(!seconds.empty(), "no repeats");
  std::sort(seconds.begin(), seconds.end());
  const size_t last = seconds.size() - 1;
  const double median = seconds[seconds.size() / 2];
  const double width = seconds[last - last / 4] - seconds[last / 4];
  return {median, median > 0 ? width / 2 / median : 0};
}

RepeatedTime time_repeatedly(const TimingOptions& options, const std::function<void()>& work) {
  if (!options.device.is_cpu()) return time_on_device(options, work);
  std::vector<double> seconds;
  work();
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    const double start_s = now_s(options.cpu_seconds);
    for (int run = 0; run < options.runs; ++run) work();
    seconds.push_back((now_s(options.cpu_seconds) - start_s) / options.runs);
  }
  return summarize_times(std::move(seconds));
}

}  // namespace longspan
