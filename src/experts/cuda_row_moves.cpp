#include "experts/cuda_row_moves.h"

#include <ATen/ops/empty.h>

#include <span>

#include "device/device.h"
#include "device/device_types.h"
#include "kernels/cuda/expert_rows.h"

namespace longspan {
namespace {

using cuda::Accumulate;

int64_t width_of(const at::Tensor& rows) {
  return rows.dim() == 2 ? rows.size(1) : 1;
}

}  // namespace

at::Tensor cuda_gathered(const at::Tensor& source, const std::vector<int64_t>& places) {
  std::vector<int64_t> shape = source.sizes().vec();
  shape[0] = std::ssize(places);
  at::Tensor packed = at::empty(shape, source.options());
  const at::Tensor on_device = upload(std::span<const int64_t>(places), source.device());
  for_device_type(source.scalar_type(), [&]<typename T>() {
    cuda::gather_rows(device_data<const T>(source), device_data<const int64_t>(on_device),
                      std::ssize(places), width_of(source), device_data<T>(packed),
                      current_stream());
  });
  return packed;
}

void cuda_add_to(const at::Tensor& packed, const std::vector<int64_t>& places,
                 const at::Tensor& sum) {
  const at::Tensor on_device = upload(std::span<const int64_t>(places), sum.device());
  for_device_type(packed.scalar_type(), [&]<typename T>() {
    cuda::add_rows(device_data<const T>(packed), device_data<const int64_t>(on_device),
                   std::ssize(places), width_of(sum), device_data<Accumulate<T>>(sum),
                   current_stream());
  });
}

}  // namespace longspan
