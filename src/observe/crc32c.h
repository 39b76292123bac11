// CRC-32C (Castagnoli), and the masked form that TensorBoard's record files store.
//
//   crc32c("123456789") == 0xe3069283
//
// The mask (rotate right by 15, add a constant) keeps a checksum over data that holds checksums
// from being trivial. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace longspan {

uint32_t crc32c(std::string_view bytes);
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace longspan
