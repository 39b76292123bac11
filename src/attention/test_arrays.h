// Random rows and comparisons for the tests of attention.
//
//   const std::vector<double> q = random_rows<double>(random, rows * shape.query_row_size());
//   EXPECT_LE(relative_error(o, expected), 1e-12);
//
// Pure but for the random stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <vector>

#include "attention/real_types.h"
#include "base/random.h"

namespace longspan {

template <typename Real>
std::vector<Real> random_rows(RandomStream& random, int64_t count) {
  std::vector<Real> values(static_cast<size_t>(count));
  for (Real& value : values) value = static_cast<Real>(random.normal());
  return values;
}

template <typename Real>
at::Tensor tensor_of(const std::vector<Real>& values, std::vector<int64_t> sizes) {
  const at::Tensor tensor =
      at::empty(sizes, sizeof(Real) == sizeof(float) ? at::kFloat : at::kDouble);
  LONGSPAN_CHECK(tensor.numel() == std::ssize(values), "sizes ", sizes);
  std::copy(values.begin(), values.end(), tensor.data_ptr<Real>());
  return tensor;
}

template <typename Real>
std::vector<double> values_of(const at::Tensor& tensor) {
  const at::Tensor rows = tensor.contiguous();
  return {rows.const_data_ptr<Real>(), rows.const_data_ptr<Real>() + rows.numel()};
}

// Norm of the difference over the norm of `expected`; equal infinities differ by nothing.
inline double relative_error(const std::vector<double>& got, const std::vector<double>& expected) {
  LONGSPAN_CHECK(got.size() == expected.size(), got.size(), " values, expected ", expected.size());
  double difference = 0;
  double norm = 0;
  for (size_t idx = 0; idx < got.size(); ++idx) {
    if (got[idx] == expected[idx]) {
      norm += std::isinf(got[idx]) ? 0 : expected[idx] * expected[idx];
      continue;
    }
    difference += (got[idx] - expected[idx]) * (got[idx] - expected[idx]);
    norm += expected[idx] * expected[idx];
  }
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

}  // namespace longspan
