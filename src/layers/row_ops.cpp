#include "layers/row_ops.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "device/device.h"
#include "kernels/cpu/rms_norm.h"
#include "kernels/cpu/rope.h"
#include "layers/cuda_ops.h"
#include "layers/parallel_ranges.h"
#include "layers/real_types.h"

namespace longspan {
namespace {

// Elements below which another thread costs more than it saves.
constexpr int64_t kGrainElements = 16384;

int64_t grain_rows(int64_t width) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, width));
}

void check_same(const at::Tensor& a, const at::Tensor& b) {
  LONGSPAN_CHECK(a.is_contiguous() && b.is_contiguous() && a.sizes() == b.sizes() &&
                     a.scalar_type() == b.scalar_type(),
                 a.toString(), " ", a.sizes(), " and ", b.toString(), " ", b.sizes(),
                 " must be contiguous and alike");
}

void check_gradient(const at::Tensor& weight, const at::Tensor& gradient) {
  LONGSPAN_CHECK(gradient.is_contiguous() && gradient.sizes() == weight.sizes() &&
                     gradient.scalar_type() == accumulate_type(weight.scalar_type()),
                 "weight ", weight.toString(), " ", weight.sizes(), ", its gradient ",
                 gradient.toString(), " ", gradient.sizes());
}

void check_norm(const at::Tensor& x, const at::Tensor& weight) {
  LONGSPAN_CHECK(x.is_contiguous() && weight.is_contiguous() && weight.dim() == 1 && x.dim() >= 1 &&
                     x.size(-1) == weight.size(0) && x.scalar_type() == weight.scalar_type(),
                 "x ", x.toString(), " ", x.sizes(), ", weight ", weight.toString(), " ",
                 weight.sizes());
}

}  // namespace

NormOutput norm_forward(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  check_norm(x, weight);
  if constexpr (kBuiltWithCuda) {
    if (x.is_cuda()) return cuda_norm_forward(x, weight, epsilon);
  }
  const int64_t width = weight.size(0);
  const int64_t rows = x.numel() / width;
  NormOutput output{at::empty_like(x), at::empty({rows}, x.options())};
  for_real_type(x.scalar_type(), [&]<typename Real>() {
    parallel_ranges({0, rows}, grain_rows(width), [&](Range part) {
      rms_norm_forward(x.const_data_ptr<Real>(), weight.const_data_ptr<Real>(), epsilon, part,
                       width, output.y.mutable_data_ptr<Real>(),
                       output.inverse_rms.mutable_data_ptr<Real>());
    });
  });
  return output;
}

void norm_backward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& inverse_rms,
                   const at::Tensor& dy, const at::Tensor& weight_gradient, const at::Tensor& dx,
                   at::Tensor* y) {
  check_norm(x, weight);
  check_same(x, dy);
  check_same(x, dx);
  check_gradient(weight, weight_gradient);
  if constexpr (kBuiltWithCuda) {
    if (x.is_cuda()) {
      return cuda_norm_backward(x, weight, inverse_rms, dy, weight_gradient, dx, y);
    }
  }
  const int64_t width = weight.size(0);
  const int64_t rows = x.numel() / width;
  const int64_t blocks = (rows + kRmsNormBlockRows - 1) / kRmsNormBlockRows;
  if (y != nullptr) *y = at::empty_like(x);
  const at::Tensor partials = at::zeros({blocks, width}, x.options());
  for_real_type(x.scalar_type(), [&]<typename Real>() {
    Real* again = y != nullptr ? y->mutable_data_ptr<Real>() : nullptr;
    parallel_ranges({0, blocks}, 1, [&](Range part) {
      for (int64_t block = part.begin; block < part.end; ++block) {
        const Range in_block{block * kRmsNormBlockRows,
                             std::min(rows, (block + 1) * kRmsNormBlockRows)};
        rms_norm_backward(x.const_data_ptr<Real>(), weight.const_data_ptr<Real>(),
                          inverse_rms.const_data_ptr<Real>(), dy.const_data_ptr<Real>(), in_block,
                          width, dx.mutable_data_ptr<Real>(), again,
                          partials.mutable_data_ptr<Real>() + block * width);
      }
    });
    add_partials(partials.const_data_ptr<Real>(), blocks, width,
                 weight_gradient.mutable_data_ptr<Real>());
  });
}

std::shared_ptr<const RopeTable> make_rope_table(std::span<const float> inverse_frequencies,
                                                 double scaling, std::span<const int64_t> positions,
                                                 const at::TensorOptions& options) {
  const auto tokens = static_cast<int64_t>(positions.size());
  const auto half = static_cast<int64_t>(inverse_frequencies.size());
  auto table = std::make_shared<RopeTable>();
  table->cosines = at::empty({tokens, half}, options);
  table->sines = at::empty({tokens, half}, options);
  if constexpr (kBuiltWithCuda) {
    if (table->cosines.is_cuda()) {
      cuda_fill_rope_table(inverse_frequencies, scaling, positions, *table);
      return table;
    }
  }
  for_real_type(table->cosines.scalar_type(), [&]<typename Real>() {
    parallel_ranges({0, tokens}, grain_rows(32 * half), [&](Range part) {
      rope_table(inverse_frequencies.data(), half, scaling, positions.data(), part,
                 table->cosines.mutable_data_ptr<Real>(), table->sines.mutable_data_ptr<Real>());
    });
  });
  return table;
}

at::Tensor rotate(const at::Tensor& q_THK, const RopeTable& table, int direction) {
  LONGSPAN_CHECK(q_THK.dim() == 3 && q_THK.is_contiguous() &&
                     q_THK.size(0) == table.cosines.size(0) &&
                     q_THK.size(2) == 2 * table.cosines.size(1) &&
                     accumulate_type(q_THK.scalar_type()) == table.cosines.scalar_type(),
                 "heads ", q_THK.toString(), " ", q_THK.sizes(), ", rope table ",
                 table.cosines.toString(), " ", table.cosines.sizes());
  if constexpr (kBuiltWithCuda) {
    if (q_THK.is_cuda()) return cuda_rotate(q_THK, table, direction);
  }
  const int64_t heads = q_THK.size(1);
  const int64_t width = q_THK.size(2);
  at::Tensor rotated = at::empty_like(q_THK);
  for_real_type(q_THK.scalar_type(), [&]<typename Real>() {
    parallel_ranges({0, q_THK.size(0)}, grain_rows(heads * width), [&](Range part) {
      rope_rotate(q_THK.const_data_ptr<Real>(), table.cosines.const_data_ptr<Real>(),
                  table.sines.const_data_ptr<Real>(), part, heads, width, direction,
                  rotated.mutable_data_ptr<Real>());
    });
  });
  return rotated;
}

at::Tensor swiglu(const at::Tensor& gate_TF, const at::Tensor& up_TF, double limit) {
  check_same(gate_TF, up_TF);
  if constexpr (kBuiltWithCuda) {
    if (gate_TF.is_cuda()) return cuda_swiglu(gate_TF, up_TF, limit);
  }
  at::Tensor y = at::empty_like(gate_TF);
  for_real_type(y.scalar_type(), [&]<typename Real>() {
    parallel_ranges({0, y.numel()}, kGrainElements, [&](Range part) {
      swiglu_forward(gate_TF.const_data_ptr<Real>(), up_TF.const_data_ptr<Real>(), limit, part,
                     y.mutable_data_ptr<Real>());
    });
  });
  return y;
}

SwigluGradient swiglu_backward(const at::Tensor& gate_TF, const at::Tensor& up_TF,
                               const at::Tensor& dy_TF, double limit) {
  check_same(gate_TF, up_TF);
  check_same(gate_TF, dy_TF);
  if constexpr (kBuiltWithCuda) {
    if (gate_TF.is_cuda()) return cuda_swiglu_backward(gate_TF, up_TF, dy_TF, limit);
  }
  SwigluGradient gradient{at::empty_like(gate_TF), at::empty_like(gate_TF)};
  for_real_type(gate_TF.scalar_type(), [&]<typename Real>() {
    parallel_ranges({0, gate_TF.numel()}, kGrainElements, [&](Range part) {
      Real* dy = dy_TF.mutable_data_ptr<Real>();
      swiglu_backward(gate_TF.const_data_ptr<Real>(), up_TF.const_data_ptr<Real>(), limit, dy, part,
                      gradient.y.mutable_data_ptr<Real>(), gradient.dgate.mutable_data_ptr<Real>(),
                      dy);
    });
  });
  return gradient;
}

}  // namespace longspan
