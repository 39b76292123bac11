// For tests: all weights in memory, and accumulators for all their gradients.
//
//   TestParameters parameters({{8, 4}, {4}}, at::kDouble, /*seed=*/1);
//   at::Tensor y = linear(parameters.access(), x, 0, residual);
//   parameters.gradients[0]  // what backward added
//
// And gradients by finite differences, for float64: of a scalar function of a tensor that is
// changed in place.
// Thread contract: one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <functional>
#include <vector>

#include "base/random.h"
#include "layers/parameter_access.h"

namespace longspan {

inline at::Tensor random_tensor(RandomStream& random, std::vector<int64_t> shape,
                                at::ScalarType type = at::kDouble) {
  at::Tensor values = at::empty(shape, at::kDouble);
  double* data = values.mutable_data_ptr<double>();
  for (int64_t i = 0; i < values.numel(); ++i) data[i] = random.normal();
  return values.to(type);
}

class TestParameters final : public WeightSource, public GradientSink {
 public:
  TestParameters(const std::vector<std::vector<int64_t>>& shapes, at::ScalarType type,
                 uint64_t seed) {
    RandomStream random(seed, "test parameters");
    for (const auto& shape : shapes) {
      weights.push_back(random_tensor(random, shape, type));
      gradients.push_back(at::zeros_like(weights.back()));
    }
  }

  const at::Tensor& weight(ParameterId id) const override {
    return weights.at(static_cast<size_t>(id));
  }
  at::Tensor& gradient(ParameterId id) override { return gradients.at(static_cast<size_t>(id)); }
  ParameterAccess access() { return {this, this}; }

  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> gradients;
};

// Norm of the difference over norm of the reference.
inline double relative_error(const at::Tensor& value, const at::Tensor& expected) {
  const at::Tensor reference = expected.to(at::kDouble);
  return (value.to(at::kDouble) - reference).norm().item<double>() /
         std::max(reference.norm().item<double>(), 1e-300);
}

// d objective() / d x by central differences of order four, in step `step`.
inline at::Tensor finite_difference(at::Tensor& x, const std::function<double()>& objective,
                                    double step = 1e-3) {
  at::Tensor gradient = at::zeros_like(x);
  double* values = x.mutable_data_ptr<double>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double center = values[i];
    auto at = [&](double offset) {
      values[i] = center + offset;
      return objective();
    };
    gradient.mutable_data_ptr<double>()[i] =
        (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step);
    values[i] = center;
  }
  return gradient;
}

}  // namespace longspan
