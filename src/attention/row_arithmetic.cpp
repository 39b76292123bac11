#include "attention/row_arithmetic.h"

#include <ATen/ops/empty.h>

#include "attention/gpu_attention.h"
#include "attention/real_types.h"
#include "base/check.h"
#include "device/device.h"
#include "kernels/cpu/attention_rows.h"

namespace longspan {

void merge_rows(const AttentionShape& shape, const at::Tensor& o_THK, const at::Tensor& lse_TH,
                const at::Tensor& part_o_THK, const at::Tensor& part_lse_TH) {
  if constexpr (kBuiltWithCuda) {
    if (o_THK.is_cuda()) return gpu_merge_rows(shape, o_THK, lse_TH, part_o_THK, part_lse_TH);
  }
  for_real_type(o_THK.scalar_type(), [&]<typename Real>() {
    merge_attention_rows<Real>(shape, o_THK.size(0), o_THK.data_ptr<Real>(),
                               lse_TH.data_ptr<Real>(), part_o_THK.const_data_ptr<Real>(),
                               part_lse_TH.const_data_ptr<Real>());
  });
}

at::Tensor row_delta(const AttentionShape& shape, const at::Tensor& o_THK,
                     const at::Tensor& d_o_THK) {
  const at::Tensor delta = at::empty({o_THK.size(0), shape.heads},
                                     o_THK.options().dtype(accumulate_type(o_THK.scalar_type())));
  if constexpr (kBuiltWithCuda) {
    if (o_THK.is_cuda()) {
      gpu_delta(shape, o_THK, d_o_THK, delta);
      return delta;
    }
  }
  for_real_type(o_THK.scalar_type(), [&]<typename Real>() {
    attention_delta<Real>(shape, delta.size(0), o_THK.const_data_ptr<Real>(),
                          d_o_THK.const_data_ptr<Real>(), delta.data_ptr<Real>());
  });
  return delta;
}

at::Tensor projected_output(const AttentionShape& shape, const at::Tensor& d_o_THK,
                            const at::Tensor& delta_TH) {
  LONGSPAN_CHECK(d_o_THK.is_cuda(), "rows on ", d_o_THK.device().str());
  if constexpr (kBuiltWithCuda) return gpu_projected_output(shape, d_o_THK, delta_TH);
  return {};
}

}  // namespace longspan
