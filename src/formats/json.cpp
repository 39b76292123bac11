#include "formats/json.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace longspan {
namespace {

[[noreturn]] void fail_write(const std::filesystem::path& path,
                             const std::filesystem::path& temporary, int descriptor) {
  const std::string reason = std::strerror(errno);
  if (descriptor >= 0) ::close(descriptor);
  std::error_code ignored;
  std::filesystem::remove(temporary, ignored);
  throw UserError(text("cannot write ", path.string(), ": ", reason));
}

}  // namespace

Json parse_json(std::string_view source, const std::string& origin) {
  try {
    return Json::parse(source);
  } catch (const Json::exception& error) {
    throw UserError(text(origin, ": not valid JSON: ", error.what()));
  }
}

Json read_json(const std::filesystem::path& path) {
  return parse_json(read_text(path), path.string());
}

void write_json_atomic(const std::filesystem::path& path, const Json& value) {
  write_text_atomic(path, value.dump(2) + "\n");
}

std::string read_text(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) {
    throw UserError(text("cannot read ", path.string(), ": it is a folder"));
  }
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    throw UserError(text("cannot read ", path.string(), ": ", std::strerror(errno)));
  }
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

void write_text_atomic(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::path temporary = path;
  temporary += text(".tmp-", ::getpid());
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) fail_write(path, temporary, descriptor);
  while (!content.empty()) {
    const ssize_t written = ::write(descriptor, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_write(path, temporary, descriptor);
    content.remove_prefix(static_cast<size_t>(written));
  }
  if (::fsync(descriptor) != 0) fail_write(path, temporary, descriptor);
  if (::close(descriptor) != 0) fail_write(path, temporary, -1);
  if (::rename(temporary.c_str(), path.c_str()) != 0) fail_write(path, temporary, -1);
}

}  // namespace longspan
