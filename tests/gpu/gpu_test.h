// Base of tests that need a GPU. Without one they are skipped, with a word; where
// LONGSPAN_REQUIRE_GPU=1 is set, on machines that are meant to have one, that is a failure.
//
//   class Kernels : public GpuTest {};
//   TEST_F(Kernels, NormEqualsItsTwin) { ... on kGpu ... }
//
// Comparisons are with float64 on CPU on the same, already rounded inputs; relative_error is the
// norm of the difference over the norm of the reference.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <optional>

#include "comm/launch.h"
#include "device/device.h"

namespace longspan {

inline const at::Device kGpu{at::kCUDA, 0};

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (visible_gpus() > 0) {
      on_.emplace(kGpu);
      return;
    }
    if (process_environment()("LONGSPAN_REQUIRE_GPU") == "1") {
      FAIL() << "LONGSPAN_REQUIRE_GPU=1, but no GPU is visible";
    }
    GTEST_SKIP() << "no GPU is visible on this machine";
  }

 private:
  std::optional<DeviceThread> on_;
};

// What a rounding of every result to the type leaves, as a relative error of a whole array: half a
// unit in the last place for each element, times a little for sums in another order.
inline double rounding_of(at::ScalarType type) {
  if (type == at::kBFloat16) return 1.0 / 256;
  return type == at::kFloat ? 1e-6 : 1e-13;
}

inline double error_of(const at::Tensor& value, const at::Tensor& expected) {
  const at::Tensor reference = expected.to(at::kDouble).cpu();
  const at::Tensor found = value.to(at::kDouble).cpu();
  if (reference.numel() == 0) return 0;
  return (found - reference).norm().item<double>() /
         std::max(reference.norm().item<double>(), 1e-300);
}

inline const at::ScalarType kGpuTypes[] = {at::kBFloat16, at::kFloat, at::kDouble};

}  // namespace longspan
