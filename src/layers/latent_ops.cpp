#include "layers/latent_ops.h"

#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <c10/core/GradMode.h>

#include "base/check.h"
#include "layers/layer_node.h"

namespace longspan {
namespace {

using c10::AutoGradMode;

// Rows [first, first + count) of every head in a tensor of the parameter's shape: a view.
at::Tensor head_rows(const at::Tensor& kv_b, int64_t heads, int64_t first, int64_t count) {
  LONGSPAN_CHECK(
      kv_b.dim() == 2 && kv_b.size(0) % heads == 0 && first + count <= kv_b.size(0) / heads,
      "kv_b ", kv_b.sizes(), " has not ", count, " rows from ", first, " on for each of ", heads,
      " heads");
  return kv_b.view({heads, kv_b.size(0) / heads, kv_b.size(1)}).narrow(1, first, count);
}

// x [T, H, A] times a matrix of each head [H, A, B].
at::Tensor by_head(const at::Tensor& x_THA, const at::Tensor& matrix_HAB) {
  return at::bmm(x_THA.transpose(0, 1), matrix_HAB).transpose(0, 1).contiguous();
}

// gradient [H, A, B] += a [H, A, T] b [H, T, B], summed in the gradient's type.
void add_by_head(at::Tensor gradient_HAB, const at::Tensor& a_HAT, const at::Tensor& b_HTB) {
  if (gradient_HAB.scalar_type() == a_HAT.scalar_type()) {
    gradient_HAB.baddbmm_(a_HAT, b_HTB);
  } else {
    at::baddbmm_out(gradient_HAB, gradient_HAB, a_HAT, b_HTB, gradient_HAB.scalar_type());
  }
}

}  // namespace

at::Tensor absorb_queries(const ParameterAccess& access, const at::Tensor& q_THK,
                          ParameterId kv_b) {
  const int64_t heads = q_THK.size(1);
  const int64_t width = q_THK.size(2);
  at::Tensor absorbed;
  {
    const AutoGradMode off(false);
    absorbed = by_head(q_THK, head_rows(access.weights->weight(kv_b), heads, 0, width));
  }
  connect({absorbed}, {q_THK}, {q_THK}, [=](const Tensors& dy, const Tensors& saved) {
    const at::Tensor rows = head_rows(access.weights->weight(kv_b), heads, 0, width);
    add_by_head(head_rows(access.gradients->gradient(kv_b), heads, 0, width),
                saved[0].permute({1, 2, 0}), dy[0].transpose(0, 1));
    return Tensors{by_head(dy[0], rows.transpose(1, 2))};
  });
  return absorbed;
}

at::Tensor expand_values(const ParameterAccess& access, const at::Tensor& o_THR, ParameterId kv_b,
                         int64_t value_width) {
  const int64_t heads = o_THR.size(1);
  const int64_t first = access.weights->weight(kv_b).size(0) / heads - value_width;
  at::Tensor values;
  {
    const AutoGradMode off(false);
    const at::Tensor rows = head_rows(access.weights->weight(kv_b), heads, first, value_width);
    values = by_head(o_THR, rows.transpose(1, 2));
  }
  connect({values}, {o_THR}, {o_THR}, [=](const Tensors& dy, const Tensors& saved) {
    const at::Tensor rows = head_rows(access.weights->weight(kv_b), heads, first, value_width);
    add_by_head(head_rows(access.gradients->gradient(kv_b), heads, first, value_width),
                dy[0].permute({1, 2, 0}), saved[0].transpose(0, 1));
    return Tensors{by_head(dy[0], rows)};
  });
  return values;
}

}  // namespace longspan
