#include "formats/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace longspan {
namespace {

[[noreturn]] void fail_open(const std::filesystem::path& path, int descriptor,
                            const std::string& reason) {
  if (descriptor >= 0) ::close(descriptor);
  throw UserError(text("cannot read ", path.string(), ": ", reason));
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  // Without O_NONBLOCK opening a pipe waits for its writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail_open(path, descriptor, std::strerror(errno));
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) fail_open(path, descriptor, std::strerror(errno));
  if (S_ISDIR(status.st_mode)) fail_open(path, descriptor, "it is a folder");
  if (!S_ISREG(status.st_mode)) fail_open(path, descriptor, "it is not a regular file");
  size_ = status.st_size;
  if (size_ > 0) {  // an empty mapping is an error to the kernel, not to us
    void* address =
        ::mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (address == MAP_FAILED) fail_open(path, descriptor, std::strerror(errno));
    data_ = static_cast<const std::byte*>(address);
  }
  ::close(descriptor);  // the mapping keeps the file
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
