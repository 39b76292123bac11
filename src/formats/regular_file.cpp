#include "formats/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace longspan {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, int descriptor,
                       const std::string& reason) {
  if (descriptor >= 0) ::close(descriptor);
  throw UserError(text("cannot read ", path.string(), ": ", reason));
}

}  // namespace

int open_regular(const std::filesystem::path& path) {
  // Without O_NONBLOCK opening a pipe waits for its writer; regular files do not mind it.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  const char* const kNotRegular = "it is not a regular file; copy what it holds into one";
  if (descriptor < 0) {
    const bool is_socket = errno == ENXIO;
    fail(path, -1, is_socket ? kNotRegular : std::strerror(errno));
  }
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) fail(path, descriptor, std::strerror(errno));
  if (S_ISDIR(status.st_mode)) fail(path, descriptor, "it is a folder");
  if (!S_ISREG(status.st_mode)) fail(path, descriptor, kNotRegular);
  return descriptor;
}

std::string read_text(const std::filesystem::path& path) {
  const int descriptor = open_regular(path);
  std::string content;
  std::array<char, size_t{1} << 16> piece;
  while (true) {
    const ssize_t count = ::read(descriptor, piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path, descriptor, std::strerror(errno));
    if (count == 0) break;
    content.append(piece.data(), static_cast<size_t>(count));
  }
  ::close(descriptor);
  return content;
}

}  // namespace longspan
