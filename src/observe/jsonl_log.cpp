#include "observe/jsonl_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "formats/json.h"
#include "observe/machine.h"

namespace longspan {
namespace {

// Values that are not numbers become null; text that is not UTF-8 (a path) gets replacement signs.
std::string dump(const Json& line) {
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

int open_for_append(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (descriptor < 0) {
    throw UserError(text("cannot write ", path.string(), ": ", std::strerror(errno)));
  }
  return descriptor;
}

// The finished lines of `content` that belong to steps up to `step`.
std::string lines_up_to(const std::string& content, int64_t step, const std::string& origin) {
  std::string kept;
  size_t begin = 0;
  int64_t number = 0;
  for (size_t end = content.find('\n'); end != std::string::npos; end = content.find('\n', begin)) {
    const std::string line = content.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (object.is_discarded()) {
      throw UserError(text(origin, ":", number,
                           ": not valid JSON; remove this line, or move the file away: the run "
                           "then goes on with a new log"));
    }
    const auto found = object.is_object() ? object.find("step") : object.end();
    if (found != object.end() && found->is_number_integer() && *found > step) continue;
    kept += line + "\n";
  }
  return kept;
}

Json header_line(const char* kind, const RunHeader& header) {
  const MachineInfo machine = describe_machine();
  Json line;
  line["kind"] = kind;
  line["time"] = unix_seconds();
  line["longspan"] = header.version;
  line["commit"] = header.commit.empty() ? Json(nullptr) : Json(header.commit);
  line["config"] = header.config_toml;
  line["config_hash"] = header.config_hash;
  line["kernels"] = header.kernels;
  line["machine"] = {{"host", machine.host},
                     {"cpu", machine.cpu},
                     {"threads", machine.threads},
                     {"memory_bytes", machine.memory_bytes},
                     {"system", machine.system}};
  return line;
}

}  // namespace

JsonlLog::JsonlLog(std::filesystem::path path, int descriptor)
    : path_(std::move(path)), descriptor_(descriptor) {}

JsonlLog::JsonlLog(JsonlLog&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

JsonlLog::~JsonlLog() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

JsonlLog JsonlLog::start(const std::filesystem::path& path, const RunHeader& header) {
  write_text_atomic(path, dump(header_line("header", header)));
  return JsonlLog(path, open_for_append(path));
}

JsonlLog JsonlLog::resume(const std::filesystem::path& path, int64_t step,
                          const RunHeader& header) {
  if (!std::filesystem::exists(path)) return start(path, header);
  write_text_atomic(path, lines_up_to(read_text(path), step, path.string()));
  JsonlLog log(path, open_for_append(path));
  Json line = header_line("resume", header);
  line["step"] = step;
  log.append(dump(line));
  return log;
}

void JsonlLog::write(const StepMetrics& metrics) {
  write(metrics.skipped ? "skipped" : "step", metrics.step, scalars(metrics));
}

void JsonlLog::write(const EvalMetrics& metrics) {
  write("eval", metrics.step, scalars(metrics));
}

void JsonlLog::write(std::string_view kind, int64_t step, const Scalars& values) {
  Json line;
  line["kind"] = kind;
  line["step"] = step;
  line["time"] = unix_seconds();
  for (const auto& [name, value] : values) line[name] = value;
  append(dump(line));
}

void JsonlLog::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      throw UserError(text("cannot write ", path_.string(), ": ", std::strerror(errno)));
    }
    bytes.remove_prefix(static_cast<size_t>(count));
  }
}

}  // namespace longspan
