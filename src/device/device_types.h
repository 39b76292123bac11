// Calls a template with the element type of a CUDA kernel: bfloat16, float32 or float64.
//
//   for_device_type(x.scalar_type(), [&]<typename T>() {
//     cuda::swiglu_forward(device_data<const T>(gate), ..., current_stream());
//   });
//
// InternalError for other types. For files of CUDA builds only.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_bf16.h>

#include "base/check.h"
#include "kernels/cuda/cuda_types.h"

namespace longspan {

template <typename Function>
decltype(auto) for_device_type(at::ScalarType type, const Function& function) {
  LONGSPAN_CHECK(type == at::kBFloat16 || type == at::kFloat || type == at::kDouble,
                 "CUDA kernels run in bfloat16, float32 or float64, not ", c10::toString(type));
  if (type == at::kBFloat16) return function.template operator()<cuda::Bf16>();
  if (type == at::kFloat) return function.template operator()<float>();
  return function.template operator()<double>();
}

// The elements of a contiguous tensor on a GPU. Its type is checked by for_device_type's caller.
template <typename T>
T* device_data(const at::Tensor& tensor) {
  LONGSPAN_CHECK(tensor.is_cuda() && tensor.is_contiguous(), "tensor on ", tensor.device().str(),
                 " with strides ", tensor.strides());
  LONGSPAN_CHECK(static_cast<size_t>(tensor.element_size()) == sizeof(T), "elements of ",
                 tensor.element_size(), " bytes, expected ", sizeof(T));
  return static_cast<T*>(tensor.data_ptr());
}

inline cuda::Stream current_stream() {
  return c10::cuda::getCurrentCUDAStream().stream();
}

}  // namespace longspan
