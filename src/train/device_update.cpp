#include "train/device_update.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "device/device_types.h"
#include "kernels/cuda/adamw.h"

namespace longspan {
namespace {

template <typename Function>
void for_state_type(at::ScalarType type, const Function& function) {
  if (type == at::kDouble) return function.template operator()<double>();
  LONGSPAN_CHECK(type == at::kFloat, "state of type ", c10::toString(type));
  function.template operator()<float>();
}

}  // namespace

double device_squared_norm(const std::vector<at::Tensor>& slices) {
  if (slices.empty()) return 0;
  const auto options = slices.front().options().dtype(at::kDouble);
  const at::Tensor sum = at::zeros({1}, options);
  const at::Tensor partials = at::empty({cuda::kSquaredNormPartials}, options);
  for (const at::Tensor& slice : slices) {
    for_state_type(slice.scalar_type(), [&]<typename Real>() {
      cuda::add_squared_norm(device_data<const Real>(slice), slice.numel(),
                             device_data<double>(partials), device_data<double>(sum),
                             current_stream());
    });
  }
  return sum.item<double>();
}

void device_update(const AdamWStep& step, const DeviceUpdate& arrays, Range elements) {
  for_state_type(arrays.weight.scalar_type(), [&]<typename Real>() {
    const auto at = [&](const at::Tensor& array) {
      return device_data<Real>(array) + elements.begin;
    };
    cuda::Bf16* rounded = arrays.rounded.defined()
                              ? device_data<cuda::Bf16>(arrays.rounded) + elements.begin
                              : nullptr;
    cuda::adamw_update<Real>(step, elements.size(), at(arrays.gradient), at(arrays.weight),
                             at(arrays.first_moment), at(arrays.second_moment), rounded,
                             current_stream());
  });
}

}  // namespace longspan
