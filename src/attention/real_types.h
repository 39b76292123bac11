// The element types of the CPU attention runtime.
//
//   for_real_type(type, [&]<typename Real>() { kernel(x.const_data_ptr<Real>()); });
//   tensor_bytes({q, k, v});
//
// Pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "base/check.h"

namespace longspan {

// Calls a template with the C++ type of the elements; InternalError for other types, which
// configuration refuses earlier.
template <typename Function>
void for_real_type(at::ScalarType type, const Function& function) {
  LONGSPAN_CHECK(type == at::kFloat || type == at::kDouble,
                 "CPU attention runs in float32 or float64, not ", type);
  type == at::kFloat ? function.template operator()<float>()
                     : function.template operator()<double>();
}

inline int64_t tensor_bytes(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.numel() * tensor.element_size();
  return bytes;
}

}  // namespace longspan
