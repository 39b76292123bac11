// One rank of one thread on a CPU with AVX2, with the project's own blocked attention.
//
// Measured by `longspan profile` on two cores of an AMD EPYC that other jobs shared (CPU seconds of
// the thread, median of 5, repeats within 21 %): float32, 4 query and 2 key heads of width 64. A
// part of the measured grid, whose whole tiles interpolation predicts within 9 % in the mean. The
// matrix rate is that of an idle core of the same machine.
#include <utility>

#include "cost/built_in_profiles.h"

namespace longspan {
namespace {

RateGrid grid(const std::vector<std::vector<double>>& gflops_per_s) {
  std::vector<double> rates;
  for (const std::vector<double>& row : gflops_per_s) {
    for (const double rate : row) rates.push_back(rate * 1e9);
  }
  return RateGrid({1, 8, 16, 32, 64, 128, 256}, {16, 32, 64, 128, 4096, 16384}, std::move(rates));
}

}  // namespace

DeviceProfile laptop_cpu_profile() {
  DeviceProfile profile;
  profile.name = "laptop_cpu";
  profile.source =
      "built in: measured by longspan profile on one core of a shared AMD EPYC (AVX2), float32, "
      "blocked CPU attention, 4 query and 2 key heads of width 64";
  profile.versions = {{"libtorch", "2.11.0"}};
  profile.shape = {.query_heads = 4,
                   .key_heads = 2,
                   .key_width = 64,
                   .value_width = 64,
                   .value_bytes = 4,
                   .accumulator_bytes = 4};
  profile.forward.causal = grid({{4300, 1880, 834, 419, 408, 406},
                                 {2020, 1360, 750, 442, 462, 490},
                                 {1210, 803, 480, 284, 357, 272},
                                 {1210, 468, 351, 213, 223, 205},
                                 {1210, 468, 187, 123, 133, 123},
                                 {1210, 468, 187, 66.3, 66.4, 65.5},
                                 {1210, 468, 187, 66.3, 61.2, 64.9}});
  profile.forward.full = grid({{3930, 2060, 929, 468, 463, 399},
                               {2220, 1310, 734, 421, 400, 447},
                               {1120, 764, 454, 284, 327, 278},
                               {559, 411, 303, 183, 242, 202},
                               {264, 194, 157, 102, 130, 124},
                               {132, 113, 80, 56.1, 65.9, 66.6},
                               {121, 98.3, 86.2, 54.6, 66.8, 66}});
  profile.forward.task_overhead_s = 1.7e-6;
  profile.forward.launch_overhead_s = 1.1e-6;
  profile.backward.causal = grid({{4100, 2590, 1290, 604, 584, 539},
                                  {2330, 1780, 1060, 603, 577, 575},
                                  {1430, 1030, 668, 406, 440, 435},
                                  {1430, 618, 408, 244, 278, 270},
                                  {1430, 618, 230, 139, 141, 138},
                                  {1430, 618, 230, 78.1, 69.5, 69.8},
                                  {1430, 618, 230, 78.1, 67.9, 70.9}});
  profile.backward.full = grid({{4040, 2470, 1330, 691, 640, 611},
                                {2460, 1720, 1030, 579, 637, 650},
                                {1280, 937, 675, 375, 450, 408},
                                {681, 564, 380, 228, 284, 268},
                                {352, 285, 191, 113, 140, 140},
                                {181, 129, 91.8, 57.4, 70.7, 72.8},
                                {165, 137, 92.7, 57.5, 70.9, 73}});
  profile.backward.task_overhead_s = 2.1e-6;
  profile.backward.launch_overhead_s = 1.2e-6;
  profile.matrix_flops_per_s = 85e9;
  profile.spread = 0.21;
  return profile;
}

}  // namespace longspan
