#include "checkpoint/publish_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace longspan {
namespace {

void sync_folder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = descriptor >= 0 && ::fsync(descriptor) == 0;
  const int error = errno;
  if (descriptor >= 0) ::close(descriptor);
  // Some network file systems cannot sync a folder and say so with EINVAL.
  if (!synced && error != EINVAL)
    throw UserError(text("cannot sync ", folder.string(), ": ", std::strerror(error)));
}

}  // namespace

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw UserError(text("cannot make the folder ", folder.string(), ": ", error.message(),
                         "; name a place that can be written"));
  }
}

void remove_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  if (error) {
    throw UserError(
        text("cannot remove ", folder.string(), ": ", error.message(), "; remove it by hand"));
  }
}

void publish_folder(const std::filesystem::path& partial, const std::filesystem::path& to) {
  sync_folder(partial);
  if (std::rename(partial.c_str(), to.c_str()) != 0) {
    throw UserError(
        text("cannot rename ", partial.string(), " to ", to.string(), ": ", std::strerror(errno)));
  }
  sync_folder(to.has_parent_path() ? to.parent_path() : std::filesystem::path("."));
}

}  // namespace longspan
