#include "layers/ordered_products.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/ordered_products.h"
#include "layers/parallel_ranges.h"
#include "layers/real_types.h"

namespace longspan {
namespace {

constexpr int64_t kGrainProducts = 262144;

OrderedShape shape_of(const at::Tensor& x, const at::Tensor& weight) {
  LONGSPAN_CHECK(
      x.dim() == 2 && weight.dim() == 2 && x.size(1) == weight.size(1) && x.is_contiguous() &&
          weight.is_contiguous() && x.scalar_type() == weight.scalar_type(),
      "x ", x.toString(), " ", x.sizes(), ", weight ", weight.toString(), " ", weight.sizes());
  return {x.size(1), weight.size(0)};
}

int64_t grain_rows(OrderedShape shape) {
  const int64_t products = std::max<int64_t>(1, kOrderedRows * shape.k * shape.m);
  return kOrderedRows * std::max<int64_t>(1, kGrainProducts / products);
}

}  // namespace

at::Tensor ordered_linear(const at::Tensor& x_TK, const at::Tensor& weight_MK) {
  const OrderedShape shape = shape_of(x_TK, weight_MK);
  at::Tensor y = at::empty({x_TK.size(0), shape.m}, x_TK.options());
  const at::Tensor transposed = weight_MK.t().contiguous();
  for_real_type(x_TK.scalar_type(), [&]<typename Real>() {
    parallel_ranges({0, x_TK.size(0)}, grain_rows(shape), [&](Range rows) {
      ordered_product(x_TK.const_data_ptr<Real>(), transposed.const_data_ptr<Real>(), rows, shape,
                      y.mutable_data_ptr<Real>());
    });
  });
  return y;
}

void ordered_linear_backward(const at::Tensor& dy_TM, const at::Tensor& weight_MK,
                             const at::Tensor& x_TK, const at::Tensor& dx_TK,
                             const at::Tensor& gradient_MK) {
  const OrderedShape shape = shape_of(x_TK, weight_MK);
  for (const at::Tensor& tensor : {dy_TM, dx_TK, gradient_MK}) {
    LONGSPAN_CHECK(tensor.is_contiguous() && tensor.scalar_type() == x_TK.scalar_type(), "x ",
                   x_TK.toString(), ", beside it ", tensor.toString(), " ", tensor.sizes());
  }
  LONGSPAN_CHECK(dy_TM.size(0) == x_TK.size(0) && dy_TM.size(1) == shape.m &&
                     dx_TK.sizes() == x_TK.sizes() && gradient_MK.sizes() == weight_MK.sizes(),
                 "dy ", dy_TM.sizes(), ", dx ", dx_TK.sizes(), ", gradient ", gradient_MK.sizes());
  for_real_type(x_TK.scalar_type(), [&]<typename Real>() {
    const Real* dy = dy_TM.const_data_ptr<Real>();
    parallel_ranges({0, x_TK.size(0)}, grain_rows(shape), [&](Range rows) {
      ordered_add_product(dy, weight_MK.const_data_ptr<Real>(), rows, shape,
                          dx_TK.mutable_data_ptr<Real>());
    });
    parallel_ranges({0, shape.k}, kOrderedColumns, [&](Range columns) {
      ordered_add_outer(dy, x_TK.const_data_ptr<Real>(), x_TK.size(0), shape, columns,
                        gradient_MK.mutable_data_ptr<Real>());
    });
  });
}

}  // namespace longspan
