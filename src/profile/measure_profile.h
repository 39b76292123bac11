// Measures this machine: what `longspan profile` writes.
//
// Why: a planner that counts FLOPs alone is wrong by a factor of two on short tasks and on few
// queries. The profile holds rates of fused launches over a grid of task shapes, causal and full,
// forward and backward apart; overheads of launches and tasks; the matrix-product rate of the
// linear layers; and the link between ranks of one process.
//
//   const DeviceProfile profile = measure_profile({.progress = show});
//   write_json_atomic("profile.json", to_json(profile));
//
// Takes a minute or two with the standard grid: points that a slow machine cannot measure in time
// are left out, the longest keys first. Sets the number of torch threads while it runs; nothing
// else should run in the process.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cost/device_profile.h"
#include "profile/equal_tasks.h"

namespace longspan {

struct ProfileOptions {
  TimedHeads heads = {};
  int threads = 1;  // of one rank
  int repeats = 5;
  std::vector<int64_t> query_rows = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
  std::vector<int64_t> key_rows = {16, 32, 64, 128, 256, 512, 1024, 4096, 16384};
  double launch_s = 0.008;  // aimed at for one launch of small tasks
  double budget_s = 120;    // for the grid
  std::function<void(int64_t done_points, int64_t total_points)> progress = {};
};

// UserError if heads, threads, repeats or axes are impossible.
DeviceProfile measure_profile(const ProfileOptions& options);

// Rates as tables, overheads, link, and how well interpolation predicts points it was not given.
std::string describe_profile(const DeviceProfile& profile);

}  // namespace longspan
