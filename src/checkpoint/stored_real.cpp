#include "checkpoint/stored_real.h"

#include <bit>
#include <cstring>

#include "base/check.h"
#include "formats/little_endian.h"

namespace longspan {
namespace {

float widen_bfloat16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

float widen_float16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  }
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal, exact
  return sign != 0 ? -magnitude : magnitude;
}

uint16_t round_to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<uint16_t>((bits >> 16) | 0x40u);  // stays a quiet not-a-number
  }
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// float64 -> float32 -> bfloat16 would round twice. Rounding to odd in the first step leaves the
// second one right: it keeps a trace of what was cut off.
float round_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || nearest != nearest) return nearest;
  auto bits = std::bit_cast<uint32_t>(nearest);
  const bool away = (nearest > 0) == (static_cast<double>(nearest) > value);
  if (away && nearest != 0) --bits;  // toward zero
  return std::bit_cast<float>(bits | 1u);
}

template <typename Stored, typename Real, typename Widen>
void copy_as(std::span<const std::byte> bytes, Range elements, std::span<Real> destination,
             Widen widen) {
  const std::byte* from = bytes.data() + elements.begin * static_cast<int64_t>(sizeof(Stored));
  for (Real& value : destination) {
    Stored stored;
    std::memcpy(&stored, from, sizeof(Stored));
    from += sizeof(Stored);
    value = static_cast<Real>(widen(stored));
  }
}

template <typename Real>
void append_as(std::span<Real> values, StoredDtype dtype, std::string& bytes) {
  for (const Real value : values) {
    if (dtype == StoredDtype::kF32) {
      append_little_endian(bytes, static_cast<float>(value));
    } else if (dtype == StoredDtype::kF64) {
      append_little_endian(bytes, static_cast<double>(value));
    } else {
      append_little_endian(bytes, round_to_bfloat16(round_to_odd(static_cast<double>(value))));
    }
  }
}

}  // namespace

bool is_real_dtype(StoredDtype dtype) {
  return dtype == StoredDtype::kF32 || dtype == StoredDtype::kF64 || dtype == StoredDtype::kBF16 ||
         dtype == StoredDtype::kF16;
}

void copy_elements(const TensorView& tensor, Range elements, const RealSpan& destination) {
  const StoredDtype dtype = tensor.description.dtype;
  LONGSPAN_CHECK(is_real_dtype(dtype), tensor.description.name, " is ", dtype_name(dtype));
  LONGSPAN_CHECK(elements.size() == element_count(destination), "elements ", elements,
                 ", destination ", element_count(destination));
  LONGSPAN_CHECK(Range(0, element_count(tensor.description)).contains(elements), "elements ",
                 elements, " of ", tensor.description.name);
  std::visit(
      [&](auto values) {
        const auto same = [](auto stored) { return stored; };
        if (dtype == StoredDtype::kF32) copy_as<float>(tensor.bytes, elements, values, same);
        if (dtype == StoredDtype::kF64) copy_as<double>(tensor.bytes, elements, values, same);
        if (dtype == StoredDtype::kBF16) {
          copy_as<uint16_t>(tensor.bytes, elements, values, widen_bfloat16);
        }
        if (dtype == StoredDtype::kF16) {
          copy_as<uint16_t>(tensor.bytes, elements, values, widen_float16);
        }
      },
      destination);
}

void append_elements(const RealSpan& values, StoredDtype dtype, std::string& bytes) {
  LONGSPAN_CHECK(is_real_dtype(dtype) && dtype != StoredDtype::kF16, "dtype ", dtype_name(dtype));
  bytes.reserve(bytes.size() + static_cast<size_t>(element_count(values) * dtype_bytes(dtype)));
  std::visit([&](auto span) { append_as(span, dtype, bytes); }, values);
}

}  // namespace longspan
