// Numbers of file formats, copied to and from little-endian bytes. Nothing in those files is
// aligned, so values are copied, never cast.
//
//   const auto count = load_little_endian<uint64_t>(file, 18);   // the 8 bytes at offset 18
//   append_little_endian(buffer, uint64_t{1});
//
// The caller has checked that the bytes are there (checked again here: InternalError). Pure
// functions; any thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

#include "base/check.h"

namespace longspan {

static_assert(std::endian::native == std::endian::little, "longspan's files are little-endian");

template <typename T>
T load_little_endian(std::span<const std::byte> bytes, int64_t offset) {
  static_assert(std::is_trivially_copyable_v<T>);
  LONGSPAN_CHECK(offset >= 0 && static_cast<size_t>(offset) + sizeof(T) <= bytes.size(), "offset ",
                 offset, " + ", sizeof(T), ", bytes ", bytes.size());
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

template <typename T>
void append_little_endian(std::string& buffer, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const size_t offset = buffer.size();
  buffer.resize(offset + sizeof(T));
  std::memcpy(buffer.data() + offset, &value, sizeof(T));
}

}  // namespace longspan
