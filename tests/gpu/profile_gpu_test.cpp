// `longspan profile --device cuda` on a small grid: what the file holds, that it predicts a launch
// which it has not seen, and that deterministic runs have a profile of their own.
#include "profile/measure_profile.h"

#include <ATen/Context.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "gpu_test.h"

namespace longspan {
namespace {

class GpuProfile : public GpuTest {};

ProfileOptions small_options() {
  ProfileOptions options = profile_options(kGpu);
  options.repeats = 3;
  options.query_rows = {128, 1024, 4096};
  options.key_rows = {1024, 4096};
  return options;
}

TEST_F(GpuProfile, SaysDeviceKernelAndHeadsAndSurvivesItsFile) {
  const DeviceProfile profile = measure_profile(small_options());
  EXPECT_NE(profile.name.find(gpu_info(0).name), std::string::npos) << profile.name;
  EXPECT_NE(profile.name.find("16:4 heads of width 128"), std::string::npos) << profile.name;
  EXPECT_NE(profile.source.find("FlashAttention-2"), std::string::npos) << profile.source;
  EXPECT_NE(profile.source.find("bfloat16"), std::string::npos) << profile.source;
  EXPECT_EQ(profile.shape.value_bytes, 2);
  EXPECT_EQ(profile.link.has_value(), visible_gpus() > 1);
  EXPECT_EQ(device_profile_from_json(parse_json(to_json(profile).dump(), "p"), "p"), profile);
  for (const PassRates* rates : {&profile.forward, &profile.backward}) {
    EXPECT_GT(rates->launch_overhead_s, 0);
    EXPECT_LT(rates->launch_overhead_s, 2e-3);
    // A GPU with such kernels: far above any CPU, below what its matrix products reach.
    for (const RateGrid* grid : {&rates->causal, &rates->full}) {
      EXPECT_GT(grid->at(4096, 4096), 0.1 * profile.matrix_flops_per_s);
      EXPECT_LT(grid->at(4096, 4096), 1.1 * profile.matrix_flops_per_s);
    }
  }
}

TEST_F(GpuProfile, PredictsAnotherLaunch) {
  const ProfileOptions options = small_options();
  const DeviceProfile profile = measure_profile(options);
  const AttentionCost cost(profile.shape, profile.forward, Direction::kForward);
  for (const int64_t rows : {1500, 3000}) {
    const EqualTasks tasks{.count = 4, .query_rows = rows, .key_rows = rows, .causal = true};
    const LaunchTimes times = time_equal_tasks(options.heads, tasks, {.repeats = 7, .device = kGpu});
    const double predicted_s = cost.launch_s() + 4 * cost.task_s({0, rows}, {0, rows});
    EXPECT_LT(predicted_s, 2 * times.forward.median_s) << rows;
    EXPECT_GT(predicted_s, times.forward.median_s / 2) << rows;
  }
}

TEST_F(GpuProfile, LeavesLibrariesAsTheyWere) {
  ProfileOptions options = small_options();
  options.query_rows = {1024};
  options.key_rows = {1024};
  options.deterministic = true;
  const DeviceProfile profile = measure_profile(options);
  EXPECT_NE(profile.name.find("deterministic"), std::string::npos) << profile.name;
  EXPECT_NE(profile.source.find("cuDNN for squares and rectangles from 1,024 rows in forward"),
            std::string::npos)
      << profile.source;
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
}

TEST_F(GpuProfile, RefusesHeadsWithoutAFastKernel) {
  ProfileOptions options = small_options();
  options.heads.head_width = 20;
  EXPECT_THROW(measure_profile(options), UserError);
}

}  // namespace
}  // namespace longspan
