#include "layers/index_ops.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>

#include <vector>

#include "base/check.h"
#include "device/device.h"

namespace longspan {

using c10::AutoGradMode;

at::Tensor untrained_project(const ParameterAccess& access, const at::Tensor& x,
                             ParameterId weight) {
  const AutoGradMode off(false);
  return at::mm(x, access.weights->weight(weight).t());
}

at::Tensor untrained_layer_norm(const ParameterAccess& access, const at::Tensor& x,
                                ParameterId weight, ParameterId bias, double epsilon) {
  const AutoGradMode off(false);
  return at::layer_norm(x, {x.size(-1)}, access.weights->weight(weight),
                        access.weights->weight(bias), epsilon);
}

at::Tensor add_slots(const ParameterAccess& access, const at::Tensor& x_TD, ParameterId slots,
                     std::span<const int64_t> positions) {
  const AutoGradMode off(false);
  LONGSPAN_CHECK(x_TD.size(0) == std::ssize(positions), x_TD.size(0), " rows at ", positions.size(),
                 " positions");
  const at::Tensor& weight = access.weights->weight(slots);
  std::vector<int64_t> rows;
  for (const int64_t position : positions) rows.push_back(position % weight.size(0));
  const at::Tensor row = upload(std::span<const int64_t>(rows), x_TD.device());
  return at::index_select(weight, 0, row).add_(x_TD);
}

}  // namespace longspan
