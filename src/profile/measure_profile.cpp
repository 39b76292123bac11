#include "profile/measure_profile.h"

#include <ATen/Config.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <utility>

#include "attention/attention_kernel.h"
#include "base/error.h"
#include "cost/charged_pairs.h"
#include "device/device.h"
#include "kernels/packed_tiles.h"
#include "observe/machine.h"
#include "profile/thread_link.h"
#include "train/measure_peak.h"

namespace longspan {
namespace {

class TorchThreads {
 public:
  explicit TorchThreads(int threads) : before_(at::get_num_threads()) {
    at::set_num_threads(threads);
  }
  ~TorchThreads() { at::set_num_threads(before_); }
  TorchThreads(const TorchThreads&) = delete;
  TorchThreads& operator=(const TorchThreads&) = delete;

 private:
  int before_;
};

// As long as it lives, libraries of a GPU take the same way as in a run with that setting.
class Determinism {
 public:
  Determinism(at::Device device, bool deterministic) : on_(!device.is_cpu() && deterministic) {
    if (on_) set_deterministic(true);
  }
  ~Determinism() {
    if (on_) set_deterministic(false);
  }
  Determinism(const Determinism&) = delete;
  Determinism& operator=(const Determinism&) = delete;

 private:
  bool on_;
};

void check(const ProfileOptions& options) {
  const TimedHeads& heads = options.heads;
  if (heads.query_heads < 1 || heads.key_heads < 1 || heads.head_width < 1 ||
      heads.query_heads % heads.key_heads != 0) {
    throw UserError(text("cannot profile ", heads.query_heads, " query heads over ",
                         heads.key_heads, " key heads of width ", heads.head_width,
                         "; key heads must divide query heads"));
  }
  if (options.threads < 1 || options.repeats < 1) {
    throw UserError(text("cannot profile with ", options.threads, " threads and ", options.repeats,
                         " repeats; take 1 or more of each"));
  }
  if (options.query_rows.empty() || options.key_rows.empty()) {
    throw UserError("cannot profile a grid without points; raise the limits on rows");
  }
}

// What one launch of the measurement may hold.
struct LaunchLimits {
  int64_t tasks = 1024;
  int64_t query_rows = 16384;  // of all tasks: they bound its memory, as those of the keys do
  int64_t key_rows = 16384;
};

LaunchLimits launch_limits(at::Device device, int64_t query_rows) {
  if (device.is_cpu()) return {};
  // Few queries leave most of a GPU idle, unless many tasks run side by side. A row of keys takes
  // some 30 KiB with all that is made of it, in either direction.
  constexpr int64_t kBytesForKeyRow = 128 << 10;
  const int64_t rows =
      std::max<int64_t>(1, gpu_info(device.index()).memory_bytes / kBytesForKeyRow);
  LaunchLimits limits{
      .query_rows = 65536,
      .key_rows = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(rows)))};
  // Tasks of so many queries may be calls of a library, one each: no launch of a run has more.
  if (query_rows >= kRectangleRowsMin) limits.tasks = 64;
  return limits;
}

// A task on a grid point. On a GPU many queries are one short of it, to be filled up like those of
// most tasks.
EqualTasks point_tasks(at::Device device, int64_t query_rows, int64_t key_rows, bool causal) {
  EqualTasks tasks{.query_rows = query_rows, .key_rows = key_rows, .causal = causal};
  if (device.is_cpu() || query_rows < kRectangleRowsMin) return tasks;
  tasks.query_rows -= 1;
  if (causal && query_rows == key_rows) tasks.key_rows -= 1;
  return tasks;
}

// Everything that the measurements of one profile share.
class ProfileRun {
 public:
  explicit ProfileRun(const ProfileOptions& options)
      : options_(options),
        on_gpu_(!options.device.is_cpu()),
        timing_{.repeats = options.repeats,
                .cpu_seconds = !on_gpu_ && options.threads == 1,
                .device = options.device} {
    profile_.shape = {.query_heads = options.heads.query_heads,
                      .key_heads = options.heads.key_heads,
                      .key_width = options.heads.head_width,
                      .value_width = options.heads.head_width,
                      .value_bytes = on_gpu_ ? 2 : 4,
                      .accumulator_bytes = 4};
    profile_.matrix_flops_per_s =
        measure_peak_flops(at::TensorOptions(timed_type(options.device)).device(options.device))
            .per_second;
  }

  DeviceProfile run() {
    if (on_gpu_) {
      name_gpu();
    } else {
      name_cpu();
    }
    measure_overheads();
    std::vector<int64_t> key_rows = affordable_key_rows();
    if (on_gpu_) measure_row(key_rows.back());
    total_points_ = 2 * std::ssize(options_.query_rows) * std::ssize(key_rows);
    for (const bool causal : {true, false}) measure_grids(causal, key_rows);
    if (!on_gpu_ || visible_gpus() > 1) measure_link();
    return std::move(profile_);
  }

 private:
  void name_gpu() {
    const TimedHeads& heads = options_.heads;
    const AttentionKernelChoice kernel =
        attention_kernel_for(timed_shape(heads), timed_type(options_.device), options_.device);
    if (!kernel.fast) {
      throw UserError(text("no fast attention kernel runs heads of width ", heads.head_width,
                           " on a GPU: ", kernel.reason, "; profile heads that a run has"));
    }
    profile_.name =
        text(gpu_info(options_.device.index()).name, ", ", heads.query_heads, ":", heads.key_heads,
             " heads of width ", heads.head_width, options_.deterministic ? ", deterministic" : "");
    profile_.source = text("measured by longspan profile: ", kernel.name,
                           ", bfloat16, results added up in float32, median of ", options_.repeats,
                           " repeats, time on the device");
    profile_.versions = {{"libtorch", TORCH_VERSION}, {"system", describe_machine().system}};
  }

  void name_cpu() {
    const MachineInfo machine = describe_machine();
    profile_.name = text(machine.cpu.empty() ? "CPU" : machine.cpu, ", ", options_.threads,
                         options_.threads == 1 ? " thread" : " threads", " a rank");
    profile_.source = text(
        "measured by longspan profile: blocked CPU attention in float32, median "
        "of ",
        options_.repeats, " repeats, ",
        timing_.cpu_seconds ? "CPU seconds of the thread" : "wall time");
    profile_.versions = {{"libtorch", TORCH_VERSION},
                         {"instructions", at::get_cpu_capability()},
                         {"system", machine.system}};
  }

  void note_spread(double spread) { profile_.spread = std::max(profile_.spread, spread); }

  void measure_link() {
    const MeasuredLink link =
        measure_thread_link({.repeats = options_.repeats, .runs = 1000, .device = options_.device});
    profile_.link = link.figures;
    note_spread(link.spread);
  }

  // From a launch of one row of tiles, for each direction.
  void measure_row(int64_t key_rows) {
    const LaunchTimes times = time_equal_tasks(
        options_.heads, {.query_rows = kBlockTokens, .key_rows = key_rows}, timing_);
    const auto set = [&](const RepeatedTime& time, Direction direction, PassRates& rates) {
      const double head_flops = static_cast<double>(kBlockTokens * key_rows) *
                                flops_per_pair(profile_.shape, direction) /
                                static_cast<double>(options_.heads.query_heads);
      rates.row_flops_per_s =
          head_flops / std::max(time.median_s - rates.launch_overhead_s, time.median_s / 4);
    };
    set(times.forward, Direction::kForward, profile_.forward);
    set(times.backward, Direction::kBackward, profile_.backward);
  }

  // From launches of few and of many tasks of one query and one key.
  void measure_overheads() {
    constexpr int64_t kManyTasks = 257;
    TimingOptions timing = timing_;
    timing.runs = on_gpu_ ? 10 : 200;  // more than the queue of a GPU holds would wait for the host
    const LaunchTimes one = time_equal_tasks(options_.heads, {.causal = true}, timing);
    timing.runs = 4;
    const LaunchTimes many =
        time_equal_tasks(options_.heads, {.count = kManyTasks, .causal = true}, timing);
    const auto set = [&](const RepeatedTime& single, const RepeatedTime& all, PassRates& rates) {
      rates.task_overhead_s =
          std::max(0.0, (all.median_s - single.median_s) / static_cast<double>(kManyTasks - 1));
      rates.launch_overhead_s = std::max(0.0, single.median_s - rates.task_overhead_s);
    };
    set(one.forward, many.forward, profile_.forward);
    set(one.backward, many.backward, profile_.backward);
  }

  // Seconds that a task's forward pass may take; a guess for planning the measurement.
  double guess_s(int64_t query_rows, int64_t key_rows) const {
    return static_cast<double>(query_rows * key_rows) *
           flops_per_pair(profile_.shape, Direction::kForward) /
           (0.5 * profile_.matrix_flops_per_s);
  }

  int64_t tasks_in_launch(int64_t query_rows, int64_t key_rows) const {
    const LaunchLimits limits = launch_limits(options_.device, query_rows);
    const double wanted = options_.launch_s / guess_s(query_rows, key_rows);
    const int64_t fitting = std::min(limits.query_rows / query_rows, limits.key_rows / key_rows);
    return std::clamp<int64_t>(static_cast<int64_t>(std::min(wanted, 1e6)), 1,
                               std::clamp<int64_t>(fitting, 1, limits.tasks));
  }

  std::vector<int64_t> affordable_key_rows() const {
    std::vector<int64_t> key_rows = options_.key_rows;
    // Two kinds, forward and backward, each repeat and one more.
    const double launches = 2 * 3.5 * (options_.repeats + 1);
    const auto cost_s = [&] {
      double sum = 0;
      for (const int64_t queries : options_.query_rows) {
        for (const int64_t keys : key_rows) {
          sum += launches * guess_s(queries, keys) *
                 static_cast<double>(tasks_in_launch(queries, keys));
        }
      }
      return sum;
    };
    while (key_rows.size() > 1 && cost_s() > options_.budget_s) key_rows.pop_back();
    return key_rows;
  }

  // Rates of one point, forward and backward.
  struct PointRates {
    double forward = 0;
    double backward = 0;
  };

  void measure_grids(bool causal, const std::vector<int64_t>& key_rows) {
    std::vector<double> forward;
    std::vector<double> backward;
    std::map<std::pair<int64_t, int64_t>, PointRates> measured;
    for (const int64_t queries : options_.query_rows) {
      for (const int64_t keys : key_rows) {
        // Causal queries beyond the keys would see none: no task has them.
        const std::pair<int64_t, int64_t> point = {causal ? std::min(queries, keys) : queries,
                                                   keys};
        if (!measured.contains(point)) {
          measured[point] = measure_point(point.first, point.second, causal);
        }
        forward.push_back(measured[point].forward);
        backward.push_back(measured[point].backward);
        if (options_.progress) options_.progress(++done_points_, total_points_);
      }
    }
    const auto set = [&](PassRates& rates, std::vector<double> grid) {
      (causal ? rates.causal : rates.full) =
          RateGrid(options_.query_rows, key_rows, std::move(grid));
    };
    set(profile_.forward, std::move(forward));
    set(profile_.backward, std::move(backward));
  }

  PointRates measure_point(int64_t query_rows, int64_t key_rows, bool causal) {
    EqualTasks tasks = point_tasks(options_.device, query_rows, key_rows, causal);
    tasks.count = tasks_in_launch(query_rows, key_rows);
    const LaunchTimes times = time_equal_tasks(options_.heads, tasks, timing_);
    note_spread(times.forward.spread);
    note_spread(times.backward.spread);
    const int64_t first_query = causal ? key_rows - query_rows : key_rows;
    const auto pairs =
        static_cast<double>(charged_pairs({first_query, first_query + query_rows}, {0, key_rows}));
    const auto rate = [&](const RepeatedTime& time, const PassRates& rates, Direction direction) {
      const auto count = static_cast<double>(tasks.count);
      const double all_s = time.median_s - rates.launch_overhead_s;
      // Overheads are measured, too: they may not take the whole of a tiny task's time.
      const double work_s = std::max(all_s - count * rates.task_overhead_s, time.median_s / 4);
      return count * pairs * flops_per_pair(profile_.shape, direction) / work_s;
    };
    return {rate(times.forward, profile_.forward, Direction::kForward),
            rate(times.backward, profile_.backward, Direction::kBackward)};
  }

  ProfileOptions options_;
  bool on_gpu_;
  TimingOptions timing_;
  DeviceProfile profile_;
  int64_t total_points_ = 0;
  int64_t done_points_ = 0;
};

// Powers of two, both ends included.
std::vector<int64_t> powers_of_two(int64_t first, int64_t last) {
  std::vector<int64_t> powers;
  for (int64_t power = first; power <= last; power *= 2) powers.push_back(power);
  return powers;
}

}  // namespace

ProfileOptions profile_options(at::Device device) {
  ProfileOptions options;
  options.device = device;
  if (device.is_cpu()) return options;
  options.heads = {.query_heads = 16, .key_heads = 4, .head_width = 128};
  options.query_rows = powers_of_two(16, 32768);
  options.key_rows = powers_of_two(128, 131072);
  options.launch_s = 0.004;
  options.budget_s = 60;
  return options;
}

DeviceProfile measure_profile(const ProfileOptions& options) {
  check(options);
  const TorchThreads threads(options.threads);
  const DeviceThread on(options.device);
  const Determinism determinism(options.device, options.deterministic);
  return ProfileRun(options).run();
}

}  // namespace longspan
