#include "experts/row_moves.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/check.h"
#include "device/device.h"
#include "experts/cuda_row_moves.h"
#include "kernels/cpu/expert_rows.h"
#include "layers/parallel_ranges.h"
#include "layers/real_types.h"

namespace longspan {
namespace {

constexpr int64_t kGrainElements = 16384;

int64_t width_of(const at::Tensor& rows) {
  return rows.dim() == 2 ? rows.size(1) : 1;
}

int64_t grain_rows(int64_t width) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, width));
}

void check_rows(const at::Tensor& packed, const std::vector<int64_t>& places, const at::Tensor& all,
                at::ScalarType type_of_all) {
  LONGSPAN_CHECK(packed.is_contiguous() && all.is_contiguous() &&
                     packed.size(0) == std::ssize(places) && packed.dim() == all.dim() &&
                     width_of(packed) == width_of(all) && all.scalar_type() == type_of_all,
                 packed.toString(), " ", packed.sizes(), " for ", places.size(), " places in ",
                 all.toString(), " ", all.sizes());
}

}  // namespace

at::Tensor gathered(const at::Tensor& source, const std::vector<int64_t>& places) {
  if constexpr (kBuiltWithCuda) {
    if (source.is_cuda()) return cuda_gathered(source, places);
  }
  std::vector<int64_t> shape = source.sizes().vec();
  shape[0] = std::ssize(places);
  at::Tensor packed = at::empty(shape, source.options());
  check_rows(packed, places, source, packed.scalar_type());
  const int64_t width = width_of(source);
  for_real_type(source.scalar_type(), [&]<typename Real>() {
    parallel_ranges({0, packed.size(0)}, grain_rows(width), [&](Range rows) {
      gather_rows(source.const_data_ptr<Real>(), places.data(), rows, width,
                  packed.mutable_data_ptr<Real>());
    });
  });
  return packed;
}

namespace {

// `weights` undefined: ones.
void add(const at::Tensor& packed, const std::vector<int64_t>& places, const at::Tensor& weights,
         const at::Tensor& sum) {
  check_rows(packed, places, sum, accumulate_type(packed.scalar_type()));
  const int64_t width = width_of(sum);
  for_real_type(sum.scalar_type(), [&]<typename Real>() {
    const Real* factors = weights.defined() ? weights.const_data_ptr<Real>() : nullptr;
    parallel_ranges({0, packed.size(0)}, grain_rows(width), [&](Range rows) {
      add_rows(packed.const_data_ptr<Real>(), places.data(), factors, rows, width,
               sum.mutable_data_ptr<Real>());
    });
  });
}

}  // namespace

void add_to(const at::Tensor& packed, const std::vector<int64_t>& places, const at::Tensor& sum) {
  if constexpr (kBuiltWithCuda) {
    if (packed.is_cuda()) {
      check_rows(packed, places, sum, accumulate_type(packed.scalar_type()));
      return cuda_add_to(packed, places, sum);
    }
  }
  add(packed, places, {}, sum);
}

void add_weighted(const at::Tensor& packed, const std::vector<int64_t>& places,
                  const at::Tensor& weights, const at::Tensor& sum) {
  LONGSPAN_CHECK(weights.numel() == packed.size(0), weights.sizes(), " for ", packed.sizes());
  add(packed, places, weights, sum);
}

void scale_by(const at::Tensor& weights, const at::Tensor& rows) {
  LONGSPAN_CHECK(weights.numel() == rows.size(0) && rows.is_contiguous(), weights.sizes(), " for ",
                 rows.sizes());
  const int64_t width = width_of(rows);
  for_real_type(rows.scalar_type(), [&]<typename Real>() {
    parallel_ranges({0, rows.size(0)}, grain_rows(width), [&](Range part) {
      scale_rows(weights.const_data_ptr<Real>(), part, width, rows.mutable_data_ptr<Real>());
    });
  });
}

void place_dots(const at::Tensor& a, const at::Tensor& b, const std::vector<int64_t>& places,
                const at::Tensor& dots) {
  check_rows(a, places, b, a.scalar_type());
  const int64_t width = width_of(a);
  for_real_type(a.scalar_type(), [&]<typename Real>() {
    std::vector<Real> packed(places.size());
    parallel_ranges({0, a.size(0)}, grain_rows(width), [&](Range part) {
      row_dots(a.const_data_ptr<Real>(), b.const_data_ptr<Real>(), part, width, packed.data());
    });
    Real* out = dots.mutable_data_ptr<Real>();
    for (size_t row = 0; row < places.size(); ++row) out[places[row]] = packed[row];
  });
}

}  // namespace longspan
