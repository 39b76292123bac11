#include "formats/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "formats/regular_file.h"

namespace longspan {
MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const int descriptor = open_regular(path);
  struct stat status {};
  void* address = MAP_FAILED;
  const bool known = ::fstat(descriptor, &status) == 0;
  size_ = status.st_size;
  if (known && size_ > 0) {  // an empty mapping is an error to the kernel, not to us
    address = ::mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_PRIVATE, descriptor, 0);
  }
  const int reason = errno;
  ::close(descriptor);  // the mapping keeps the file
  if (!known || (size_ > 0 && address == MAP_FAILED)) {
    throw UserError(text("cannot read ", path.string(), ": ", std::strerror(reason)));
  }
  if (size_ > 0) data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  unmap();
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    path_ = std::move(other.path_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

std::string_view MappedFile::characters() const {
  return {reinterpret_cast<const char*>(data_), static_cast<size_t>(size_)};
}

void MappedFile::unmap() noexcept {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_));
}

}  // namespace longspan
