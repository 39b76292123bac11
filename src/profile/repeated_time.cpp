#include "profile/repeated_time.h"

#include <time.h>

#include <algorithm>

#include "base/check.h"

namespace longspan {
namespace {

double now_s(bool cpu_seconds) {
  timespec time{};
  ::clock_gettime(cpu_seconds ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
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
