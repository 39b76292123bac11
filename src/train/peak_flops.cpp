#include "train/peak_flops.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "device/device.h"
#include "device/device_timer.h"

namespace longspan {

PeakFlops measure_peak_flops(const c10::TensorOptions& tensors) {
  const at::Device device = tensors.device();
  // A GPU needs a large product, and several in a row: its clocks rise with the work.
  const bool on_cpu = device.is_cpu();
  const at::ScalarType type = c10::typeMetaToScalarType(tensors.dtype());
  const int64_t side = on_cpu || type == at::kDouble ? 1024 : type == at::kFloat ? 4096 : 8192;
  const int repeats = on_cpu ? 5 : 20;
  // Random values: products of equal ones take less power and run faster.
  const at::Tensor a = at::randn({side, side}, tensors);
  double best_s = 1e30;
  DeviceTimer timer(device);
  for (int repeat = 0; repeat <= repeats; ++repeat) {
    timer.start();
    const at::Tensor product = at::mm(a, a);
    timer.stop();
    const double elapsed_s = timer.take_seconds();
    if (repeat > 0) best_s = std::min(best_s, elapsed_s);  // the first one warms up
  }
  const auto length = static_cast<double>(side);
  PeakFlops peak{2 * length * length * length / best_s, ""};
  peak.description =
      text(std::lround(peak.per_second * 1e-9), " GFLOP/s (measured: ", c10::toString(type),
           " matrix product of ", side, "^3, best of ", repeats, ")");
  return peak;
}

}  // namespace longspan
