// An array of float32 or float64, told apart at run time: the states of a run are one or the other
// throughout (design: an accumulator is float32, and float64 in a float64 run).
//
//   std::visit([&](auto values) { for (auto& value : values) value = 0; }, span);
//   const RealSpan head = sub_span(span, {0, 10});
//
// Views, owned by whoever owns the array.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>

#include "base/check.h"
#include "base/range.h"

namespace longspan {

using RealSpan = std::variant<std::span<float>, std::span<double>>;

inline int64_t element_count(const RealSpan& span) {
  return std::visit([](auto values) { return std::ssize(values); }, span);
}

inline RealSpan sub_span(const RealSpan& span, Range range) {
  LONGSPAN_CHECK(Range(0, element_count(span)).contains(range), "range ", range, " of ",
                 element_count(span), " elements");
  return std::visit(
      [&](auto values) -> RealSpan {
        return values.subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
      },
      span);
}

inline std::span<std::byte> bytes_of(const RealSpan& span) {
  return std::visit([](auto values) { return std::as_writable_bytes(values); }, span);
}

}  // namespace longspan
