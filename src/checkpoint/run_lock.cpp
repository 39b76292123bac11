#include "checkpoint/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "base/error.h"
#include "checkpoint/publish_folder.h"

namespace longspan {
namespace {

std::vector<std::filesystem::path> missing_folders(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> missing;
  std::error_code ignored;
  for (std::filesystem::path at = folder; !at.empty() && !std::filesystem::exists(at, ignored);
       at = at.parent_path()) {
    missing.push_back(at);
  }
  return missing;
}

// Whether the file of the descriptor still has its name: its last holder may have removed it
// between our opening and our locking.
bool is_still_there(int descriptor, const std::filesystem::path& path) {
  struct ::stat ours {};
  struct ::stat named {};
  return ::fstat(descriptor, &ours) == 0 && ::stat(path.c_str(), &named) == 0 &&
         ours.st_ino == named.st_ino && ours.st_dev == named.st_dev;
}

std::string holder_of(const std::filesystem::path& path) {
  std::ifstream stream(path);
  std::string holder;
  std::getline(stream, holder);
  return holder.empty() ? "" : " (" + holder + ")";
}

std::string describe_this_process() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return text("process ", ::getpid(), " on ", host.data());
}

// For people; a lock without a name is a lock too.
void name_holder(int descriptor) {
  const std::string line = describe_this_process() + "\n";
  const bool written =
      ::ftruncate(descriptor, 0) == 0 && ::write(descriptor, line.data(), line.size()) >= 0;
  static_cast<void>(written);
}

}  // namespace

RunLock::RunLock(const std::filesystem::path& run_folder)
    : path_(run_folder / "run.lock"), made_folders_(missing_folders(run_folder)) {
  try {
    make_folder(run_folder);
    take();
  } catch (...) {
    remove_made_folders();
    throw;
  }
}

void RunLock::take() {
  while (true) {
    const int descriptor = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) {
      throw UserError(text("cannot write ", path_.string(), ": ", std::strerror(errno)));
    }
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) {
      if (is_still_there(descriptor, path_)) {
        name_holder(descriptor);
        descriptor_ = descriptor;
        return;
      }
      ::close(descriptor);
      continue;
    }
    const int error = errno;
    ::close(descriptor);
    if (error == EINTR) continue;
    if (error == ENOSYS || error == EOPNOTSUPP || error == ENOLCK) {
      ::unlink(path_.c_str());
      return;
    }
    if (error != EWOULDBLOCK) {
      throw UserError(text("cannot lock ", path_.string(), ": ", std::strerror(error)));
    }
    throw UserError(text("another run works in ", path_.parent_path().string(), holder_of(path_),
                         ": wait for its end, stop it, or choose another output.folder"));
  }
}

void RunLock::remove_made_folders() const {
  std::error_code ignored;  // a folder that is not empty stays
  for (const auto& folder : made_folders_) std::filesystem::remove(folder, ignored);
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) {
    ::unlink(path_.c_str());  // while it is held: the next holder makes a file of its own
    ::close(descriptor_);
  }
  remove_made_folders();
}

}  // namespace longspan
