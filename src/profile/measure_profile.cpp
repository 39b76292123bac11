#include "profile/measure_profile.h"

#include <ATen/Config.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "cost/charged_pairs.h"
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

// Everything that the measurements of one profile share.
class ProfileRun {
 public:
  explicit ProfileRun(const ProfileOptions& options)
      : options_(options),
        timing_{.repeats = options.repeats, .cpu_seconds = options.threads == 1} {
    profile_.shape = {.query_heads = options.heads.query_heads,
                      .key_heads = options.heads.key_heads,
                      .key_width = options.heads.head_width,
                      .value_width = options.heads.head_width,
                      .value_bytes = 4,
                      .accumulator_bytes = 4};
    profile_.matrix_flops_per_s = measure_peak_flops(at::kFloat).per_second;
  }

  DeviceProfile run() {
    name();
    measure_overheads();
    std::vector<int64_t> key_rows = affordable_key_rows();
    total_points_ = 2 * std::ssize(options_.query_rows) * std::ssize(key_rows);
    for (const bool causal : {true, false}) measure_grids(causal, key_rows);
    const MeasuredLink link = measure_thread_link({.repeats = options_.repeats, .runs = 1000});
    profile_.link = link.figures;
    note_spread(link.spread);
    return std::move(profile_);
  }

 private:
  void name() {
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

  // From launches of few and of many tasks of one query and one key.
  void measure_overheads() {
    constexpr int64_t kManyTasks = 257;
    TimingOptions timing = timing_;
    timing.runs = 200;
    const TaskTimes one = time_equal_tasks(options_.heads, {.causal = true}, timing);
    timing.runs = 4;
    const TaskTimes many =
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
    constexpr int64_t kMostTasks = 1024;
    constexpr int64_t kMostRows = 16384;  // bounds the memory of a launch
    const double wanted = options_.launch_s / guess_s(query_rows, key_rows);
    const int64_t fitting = kMostRows / std::max(query_rows, key_rows);
    return std::clamp<int64_t>(static_cast<int64_t>(std::min(wanted, 1e6)), 1,
                               std::clamp<int64_t>(fitting, 1, kMostTasks));
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
    const EqualTasks tasks{.count = tasks_in_launch(query_rows, key_rows),
                           .query_rows = query_rows,
                           .key_rows = key_rows,
                           .causal = causal};
    const TaskTimes times = time_equal_tasks(options_.heads, tasks, timing_);
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
  TimingOptions timing_;
  DeviceProfile profile_;
  int64_t total_points_ = 0;
  int64_t done_points_ = 0;
};

}  // namespace

DeviceProfile measure_profile(const ProfileOptions& options) {
  check(options);
  const TorchThreads threads(options.threads);
  return ProfileRun(options).run();
}

}  // namespace longspan
