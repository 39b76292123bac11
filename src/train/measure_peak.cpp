#include "train/measure_peak.h"

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
  // Until so many in a row were not faster than the best before them by more than the clock's
  // noise.
  const int patience = on_cpu ? 5 : 20;
  constexpr int kMostProducts = 100;
  constexpr double kFaster = 0.99;
  // Random values: products of equal ones take less power and run faster.
  const at::Tensor a = at::randn({side, side}, tensors);
  double best_s = 1e30;
  int products = 0;
  DeviceTimer timer(device);
  for (int in_vain = -1; in_vain < patience && products < kMostProducts;) {
    timer.start();
    const at::Tensor product = at::mm(a, a);
    timer.stop();
    const double elapsed_s = timer.take_seconds();
    if (in_vain == -1) {  // the first one warms up
      in_vain = 0;
      continue;
    }
    ++products;
    in_vain = elapsed_s < kFaster * best_s ? 0 : in_vain + 1;
    best_s = std::min(best_s, elapsed_s);
  }
  const auto length = static_cast<double>(side);
  PeakFlops peak;
  peak.per_second = 2 * length * length * length / best_s;
  peak.description =
      text(std::lround(peak.per_second * 1e-9), " GFLOP/s (measured: ", c10::toString(type),
           " matrix product of ", side, "^3, best of ", products, ")");
  return peak;
}

}  // namespace longspan
