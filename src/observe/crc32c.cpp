#include "observe/crc32c.h"

#include <array>

namespace longspan {
namespace {

// The remainder of each byte under the reversed polynomial.
constexpr std::array<uint32_t, 256> make_table() {
  constexpr uint32_t kPolynomial = 0x82f63b78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) {
      remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? kPolynomial : 0);
    }
    table[byte] = remainder;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t value = 0xffffffff;
  for (const char letter : bytes) {
    const auto byte = static_cast<unsigned char>(letter);
    value = (value >> 8) ^ kTable[(value ^ byte) & 0xff];
  }
  return value ^ 0xffffffff;
}

uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t value = crc32c(bytes);
  return ((value >> 15) | (value << 17)) + 0xa282ead8;
}

}  // namespace longspan
