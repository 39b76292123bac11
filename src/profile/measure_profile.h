// Measures this machine: what `longspan profile` writes.
//
// Why: a planner that counts FLOPs alone is wrong by a factor of two on short tasks and on few
// queries. The profile holds rates of fused launches over a grid of task shapes, causal and full,
// forward and backward apart; overheads of launches and tasks; the matrix-product rate of the
// linear layers; and the link between ranks of one process.
//
//   const DeviceProfile profile = measure_profile(profile_options(at::kCPU));
//   write_json_atomic("profile.json", to_json(profile));
//
// On a GPU the launches run in bfloat16 with float32 sums, and the link is that between two GPUs,
// or missing where only one is visible. Takes a minute or two with the standard grid: points that a
// slow machine cannot measure in time are left out, the longest keys first. While it runs it sets
// the number of torch threads and whether libraries may take faster ways with other bits on repeat;
// nothing else should run in the process.
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
  at::Device device = at::kCPU;
  TimedHeads heads = {};
  int threads = 1;  // of one rank
  int repeats = 5;
  bool deterministic = false;  // run.deterministic of the runs that are planned; on a GPU
  std::vector<int64_t> query_rows = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
  std::vector<int64_t> key_rows = {16, 32, 64, 128, 256, 512, 1024, 4096, 16384};
  double launch_s = 0.008;  // aimed at for one launch of small tasks
  double budget_s = 120;    // for the grid
  std::function<void(int64_t done_points, int64_t total_points)> progress = {};
};

// The standard grid and heads of a device.
ProfileOptions profile_options(at::Device device);

// UserError if heads, threads, repeats or axes are impossible, or heads run slowly on the GPU.
DeviceProfile measure_profile(const ProfileOptions& options);

// Rates as tables, overheads, link, and how well interpolation predicts points it was not given.
std::string describe_profile(const DeviceProfile& profile);

}  // namespace longspan
