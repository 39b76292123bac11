#include "layers/index_ops.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>

#include "base/check.h"
#include "layers/cpu_only.h"

namespace longspan {

using c10::AutoGradMode;

at::Tensor untrained_project(const ParameterAccess& access, const at::Tensor& x,
                             ParameterId weight) {
  const AutoGradMode off(false);
  require_cpu(x, "projections of an index");
  return at::mm(x, access.weights->weight(weight).t());
}

at::Tensor untrained_layer_norm(const ParameterAccess& access, const at::Tensor& x,
                                ParameterId weight, ParameterId bias, double epsilon) {
  const AutoGradMode off(false);
  require_cpu(x, "the norm of index keys");
  return at::layer_norm(x, {x.size(-1)}, access.weights->weight(weight),
                        access.weights->weight(bias), epsilon);
}

at::Tensor add_slots(const ParameterAccess& access, const at::Tensor& x_TD, ParameterId slots,
                     std::span<const int64_t> positions) {
  const AutoGradMode off(false);
  require_cpu(x_TD, "slots of a pool");
  LONGSPAN_CHECK(x_TD.size(0) == std::ssize(positions), x_TD.size(0), " rows at ", positions.size(),
                 " positions");
  const at::Tensor& weight = access.weights->weight(slots);
  const at::Tensor row = at::empty({x_TD.size(0)}, at::kLong);
  int64_t* rows = row.mutable_data_ptr<int64_t>();
  for (size_t token = 0; token < positions.size(); ++token) {
    rows[token] = positions[token] % weight.size(0);
  }
  return at::index_select(weight, 0, row).add_(x_TD);
}

}  // namespace longspan
