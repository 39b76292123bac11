// A file that appears whole or not at all: written under a temporary name in the same folder,
// synced, then renamed. Only a regular file is replaced, behind a link the file it names.
//
//   AtomicFile file(folder / "x.bin");
//   file.write(bytes);                 // buffered; any number of calls
//   file.publish();                    // flush, fsync, rename, fsync of the folder
//
// Several files that belong together are first sealed, then published one after the other, the one
// that readers look for last. A file destroyed before publish() leaves nothing behind. Every
// failure (disk full, permission) is a UserError that names the path. An object belongs to one
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace longspan {

class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view characters);
  // Everything written so far is on disk and the descriptor is closed; the name is still temporary.
  void seal();
  // Seals if that was not done, then renames.
  void publish();

  int64_t bytes_written() const { return bytes_written_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  void flush();
  void write_through(std::string_view characters);
  [[noreturn]] void fail();

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  std::string buffer_;
  int64_t bytes_written_ = 0;
  int descriptor_ = -1;
  bool published_ = false;
};

// Removes what killed processes left of writing `path`. Only for whoever knows that nobody writes
// it now.
void remove_leftovers(const std::filesystem::path& path);

}  // namespace longspan
