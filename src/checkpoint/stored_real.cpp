#include "checkpoint/stored_real.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "formats/little_endian.h"

namespace longspan {
namespace {

constexpr int64_t kScaleBlock = 128;

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

// Sign, 4 bits of exponent with bias 7, 3 of mantissa; no infinities, one not-a-number.
float widen_float8(uint8_t bits) {
  const uint32_t sign = uint32_t{bits & 0x80u} << 24;
  const uint32_t exponent = (bits >> 3) & 0xfu;
  const uint32_t mantissa = bits & 0x7u;
  if ((bits & 0x7fu) == 0x7fu) return std::numeric_limits<float>::quiet_NaN();
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 120) << 23) | (mantissa << 20));
  }
  const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;  // subnormal, exact
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
void copy_scaled(const TensorView& matrix, const TensorView& scales, Range elements,
                 std::span<Real> destination) {
  const int64_t columns = matrix.description.shape[1];
  const int64_t scale_columns = scales.description.shape[1];
  Real* out = destination.data();
  for (int64_t i = elements.begin; i < elements.end;) {  // runs of one row and one block
    const int64_t row = i / columns, column = i % columns;
    const int64_t block_end = std::min(columns, (column / kScaleBlock + 1) * kScaleBlock);
    const int64_t run_end = std::min(elements.end, i + block_end - column);
    const int64_t block = row / kScaleBlock * scale_columns + column / kScaleBlock;
    const auto scale =
        load_little_endian<float>(scales.bytes, block * static_cast<int64_t>(sizeof(float)));
    for (; i < run_end; ++i) {
      const float payload =
          widen_float8(static_cast<uint8_t>(matrix.bytes[static_cast<size_t>(i)]));
      // The product of the two is exact in float64.
      *out++ = static_cast<Real>(static_cast<double>(payload) * static_cast<double>(scale));
    }
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

std::vector<int64_t> block_scale_shape(const std::vector<int64_t>& matrix) {
  std::vector<int64_t> shape;
  for (const int64_t extent : matrix) shape.push_back((extent + kScaleBlock - 1) / kScaleBlock);
  return shape;
}

void copy_scaled_elements(const TensorView& matrix, const TensorView& scales, Range elements,
                          const RealSpan& destination) {
  const TensorDescription& described = matrix.description;
  LONGSPAN_CHECK(described.dtype == StoredDtype::kF8E4M3 && described.shape.size() == 2,
                 described.name, " is no matrix of F8_E4M3");
  LONGSPAN_CHECK(scales.description.dtype == StoredDtype::kF32 &&
                     scales.description.shape == block_scale_shape(described.shape),
                 scales.description.name, " does not hold the scales of ", described.name);
  LONGSPAN_CHECK(elements.size() == element_count(destination) &&
                     Range(0, element_count(described)).contains(elements),
                 "elements ", elements, " of ", described.name, ", destination ",
                 element_count(destination));
  std::visit([&](auto values) { copy_scaled(matrix, scales, elements, values); }, destination);
}

void append_elements(const RealSpan& values, StoredDtype dtype, std::string& bytes) {
  LONGSPAN_CHECK(is_real_dtype(dtype) && dtype != StoredDtype::kF16, "dtype ", dtype_name(dtype));
  bytes.reserve(bytes.size() + static_cast<size_t>(element_count(values) * dtype_bytes(dtype)));
  std::visit([&](auto span) { append_as(span, dtype, bytes); }, values);
}

}  // namespace longspan
