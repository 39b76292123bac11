// Checked narrowing between integer types. Element counts, offsets and byte sizes are 64-bit
// throughout; where a file format or a library takes fewer bits, the conversion goes through here.
//
//   const auto count = narrow<int32_t>(tokens.size());   // InternalError if the value does not fit
#pragma once

#include <type_traits>
#include <utility>

#include "base/check.h"

namespace longspan {

template <typename To, typename From>
constexpr To narrow(From value) {
  static_assert(std::is_integral_v<To> && std::is_integral_v<From>);
  LONGSPAN_CHECK(std::in_range<To>(value), "value ", +value, " does not fit the narrower type");
  return static_cast<To>(value);
}

}  // namespace longspan
