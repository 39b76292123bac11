#include "profile/measure_profile.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "profile/thread_link.h"

namespace longspan {
namespace {

ProfileOptions tiny_options() {
  ProfileOptions options;
  options.heads = {.query_heads = 2, .key_heads = 1, .head_width = 16};
  options.repeats = 3;
  options.query_rows = {16, 64, 256};
  options.key_rows = {64, 256, 512};
  options.launch_s = 0.001;
  return options;
}

TEST(MeasureProfile, HoldsTheGridThatWasAskedForAndSurvivesItsFile) {
  ProfileOptions options = tiny_options();
  int64_t calls = 0;
  options.progress = [&](int64_t done, int64_t total) {
    EXPECT_EQ(done, ++calls);
    EXPECT_EQ(total, 2 * 3 * 3);
  };
  const DeviceProfile profile = measure_profile(options);
  EXPECT_EQ(calls, 2 * 3 * 3);
  for (const PassRates* rates : {&profile.forward, &profile.backward}) {
    for (const RateGrid* grid : {&rates->causal, &rates->full}) {
      EXPECT_EQ(grid->query_rows(), options.query_rows);
      EXPECT_EQ(grid->key_rows(), options.key_rows);
    }
    EXPECT_GT(rates->task_overhead_s, 0);
    EXPECT_LT(rates->task_overhead_s, 1e-3);
    EXPECT_LT(rates->launch_overhead_s, 1e-2);
  }
  ASSERT_TRUE(profile.link.has_value());
  EXPECT_GT(profile.link->bytes_per_s, 1e7);
  EXPECT_GT(profile.matrix_flops_per_s, 1e8);
  EXPECT_EQ(device_profile_from_json(parse_json(to_json(profile).dump(), "p"), "p"), profile);
  EXPECT_NE(describe_profile(profile).find("interpolation"), std::string::npos);
}

// The profile predicts a launch that it has not seen within a factor of three (a shared machine in
// a hurry); counting a task as its whole tiles at one rate would be off by eight here.
TEST(MeasureProfile, PredictsAnotherLaunch) {
  const ProfileOptions options = tiny_options();
  const DeviceProfile profile = measure_profile(options);
  const AttentionCost cost(profile.shape, profile.forward, Direction::kForward);
  for (const int64_t queries : {16, 200}) {
    const EqualTasks tasks{.count = 8, .query_rows = queries, .key_rows = 400, .causal = true};
    const LaunchTimes times =
        time_equal_tasks(options.heads, tasks, {.repeats = 7, .cpu_seconds = true});
    const double predicted_s = cost.launch_s() + 8 * cost.task_s({400 - queries, 400}, {0, 400});
    EXPECT_LT(predicted_s, 3 * times.forward.median_s) << queries;
    EXPECT_GT(predicted_s, times.forward.median_s / 3) << queries;
  }
}

TEST(MeasureProfile, LeavesOutKeysThatTakeTooLong) {
  ProfileOptions options = tiny_options();
  options.query_rows = {16};
  options.budget_s = 0;
  EXPECT_EQ(measure_profile(options).forward.full.key_rows(), std::vector<int64_t>{64});
}

TEST(MeasureProfile, RefusesImpossibleOptions) {
  ProfileOptions options = tiny_options();
  options.heads.key_heads = 3;
  EXPECT_THROW(measure_profile(options), UserError);
  options = tiny_options();
  options.threads = 0;
  EXPECT_THROW(measure_profile(options), UserError);
  options = tiny_options();
  options.key_rows.clear();
  EXPECT_THROW(measure_profile(options), UserError);
}

TEST(RepeatedTime, MedianAndMiddleHalf) {
  const RepeatedTime time = summarize_times({9, 4, 5, 6, 1});
  EXPECT_EQ(time.median_s, 5);
  EXPECT_DOUBLE_EQ(time.spread, (6.0 - 4.0) / 2 / 5);
  EXPECT_EQ(summarize_times({2}).median_s, 2);
  EXPECT_EQ(summarize_times({2}).spread, 0);
}

TEST(RepeatedTime, RunsAsOftenAsAskedAndOnceMore) {
  int runs = 0;
  time_repeatedly({.repeats = 3, .runs = 4}, [&] { ++runs; });
  EXPECT_EQ(runs, 1 + 3 * 4);
}

}  // namespace
}  // namespace longspan
