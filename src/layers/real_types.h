// Calls a template with the C++ type of a tensor's elements: float32 or float64, nothing else.
//
//   for_real_type(x.scalar_type(), [&]<typename Real>() { kernel(x.const_data_ptr<Real>()); });
//
// InternalError for other types; configuration refuses them earlier.
#pragma once

#include <c10/core/ScalarType.h>

#include "base/check.h"

namespace longspan {

template <typename Function>
decltype(auto) for_real_type(c10::ScalarType type, const Function& function) {
  LONGSPAN_CHECK(type == c10::ScalarType::Float || type == c10::ScalarType::Double,
                 "CPU kernels run in float32 or float64, not ", c10::toString(type));
  if (type == c10::ScalarType::Float) return function.template operator()<float>();
  return function.template operator()<double>();
}

}  // namespace longspan
