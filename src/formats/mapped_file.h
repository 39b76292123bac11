// A file mapped into memory, read-only.
//
// Model weights and token shards can be larger than the memory of the machine; a mapping reads only
// the pages that are touched, and ranks of one host share them.
//
//   const MappedFile file("shards/x.bin");      // UserError: path and reason
//   std::span<const std::byte> bytes = file.bytes();
//
// The bytes live as long as the object (moving it keeps them where they are). Any number of threads
// may read. A file that someone shortens while it is mapped ends the program with SIGBUS: replace
// files by rename, as atomic_file.h does, never in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace longspan {

class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, static_cast<size_t>(size_)}; }
  std::string_view characters() const;
  int64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  void unmap() noexcept;

  std::filesystem::path path_;
  const std::byte* data_ = nullptr;  // null for an empty file
  int64_t size_ = 0;
};

}  // namespace longspan
