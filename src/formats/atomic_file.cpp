#include "formats/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"

namespace longspan {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr const char* kTemporary = ".tmp-";  // and the number of the process

// What the rename may replace: nothing, or a regular file; behind a link it is the link's file, so
// that the link stays. A device or a pipe would be lost.
std::filesystem::path replaceable(const std::filesystem::path& path) {
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  if (std::filesystem::is_other(status)) {
    throw UserError(text("cannot write ", path.string(),
                         ": it is a device, a pipe or a socket, not a regular file"));
  }
  const bool link = std::filesystem::is_symlink(std::filesystem::symlink_status(path, ignored));
  return link && std::filesystem::exists(status) ? std::filesystem::canonical(path) : path;
}

}  // namespace

AtomicFile::AtomicFile(const std::filesystem::path& path)
    : path_(replaceable(path)), temporary_(path_) {
  temporary_ += text(kTemporary, ::getpid());
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail();
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      buffer_(std::move(other.buffer_)),
      bytes_written_(other.bytes_written_),
      descriptor_(std::exchange(other.descriptor_, -1)),
      published_(std::exchange(other.published_, true)) {}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!published_) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  write(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

void AtomicFile::write(std::string_view characters) {
  LONGSPAN_CHECK(descriptor_ >= 0, "write after seal: ", path_.string());
  bytes_written_ += static_cast<int64_t>(characters.size());
  if (buffer_.size() + characters.size() >= kBufferBytes) {
    flush();
    if (characters.size() >= kBufferBytes) return write_through(characters);
  }
  buffer_.append(characters);
}

void AtomicFile::flush() {
  write_through(buffer_);
  buffer_.clear();
}

void AtomicFile::write_through(std::string_view characters) {
  while (!characters.empty()) {
    const ssize_t written = ::write(descriptor_, characters.data(), characters.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail();
    characters.remove_prefix(static_cast<size_t>(written));
  }
}

void AtomicFile::seal() {
  if (descriptor_ < 0) return;
  flush();
  if (::fsync(descriptor_) != 0) fail();
  if (::close(std::exchange(descriptor_, -1)) != 0) fail();
}

void AtomicFile::publish() {
  LONGSPAN_CHECK(!published_, "published twice: ", path_.string());
  seal();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail();
  published_ = true;
  // Without this the rename itself may be lost with the machine's power.
  const std::filesystem::path folder =
      path_.has_parent_path() ? path_.parent_path() : std::filesystem::path(".");
  const int folder_descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_descriptor < 0) fail();
  const bool synced = ::fsync(folder_descriptor) == 0;
  const int reason = errno;
  ::close(folder_descriptor);
  errno = reason;
  // Some network file systems cannot sync a folder and say so with EINVAL.
  if (!synced && reason != EINVAL) fail();
}

void AtomicFile::fail() {
  throw UserError(text("cannot write ", path_.string(), ": ", std::strerror(errno)));
}

void remove_leftovers(const std::filesystem::path& path) {
  const std::string prefix = path.filename().string() + kTemporary;
  std::vector<std::filesystem::path> leftovers;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(path.parent_path(), ignored)) {
    const std::string name = entry.path().filename().string();
    const bool numbered = name.size() > prefix.size() && name.starts_with(prefix) &&
                          name.find_first_not_of("0123456789", prefix.size()) == std::string::npos;
    if (numbered && entry.is_regular_file(ignored)) leftovers.push_back(entry.path());
  }
  // Room on the disk is all that they cost: what cannot be removed may stay.
  for (const auto& leftover : leftovers) std::filesystem::remove(leftover, ignored);
}

}  // namespace longspan
