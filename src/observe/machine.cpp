#include "observe/machine.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace longspan {
namespace {

// The text after "name:" in a file of such lines, without blanks in front; empty if there is none.
std::string field_of(const std::filesystem::path& path, std::string_view name) {
  std::ifstream stream(path);
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with(name)) continue;
    size_t at = line.find(':');
    if (at == std::string::npos) continue;
    at = line.find_first_not_of(" \t", at + 1);
    return at == std::string::npos ? "" : line.substr(at);
  }
  return "";
}

// "1234 kB" as bytes; 0 if it is not a number.
int64_t kib_field(const std::filesystem::path& path, std::string_view name) {
  std::istringstream stream(field_of(path, name));
  int64_t kib = 0;
  stream >> kib;
  return kib * 1024;
}

// The groups of a controller that hold this process, from the innermost to the root. In a container
// the path may not exist below its own mount; its parents then do.
std::vector<std::filesystem::path> group_folders(const std::filesystem::path& root,
                                                 std::string_view controller) {
  std::vector<std::filesystem::path> folders;
  std::ifstream stream(root / "proc/self/cgroup");
  for (std::string line; std::getline(stream, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = text(",", line.substr(first + 1, second - first - 1), ",");
    const bool version2 = names == ",,";
    if (!version2 && names.find(text(",", controller, ",")) == std::string::npos) continue;
    const std::filesystem::path mount =
        version2 ? root / "sys/fs/cgroup" : root / "sys/fs/cgroup" / controller;
    std::filesystem::path inner = std::filesystem::path(line.substr(second + 1)).relative_path();
    for (; !inner.empty(); inner = inner.parent_path()) folders.push_back(mount / inner);
    folders.push_back(mount);
  }
  return folders;
}

// A missing file or "max" is no limit.
bool read_number(const std::filesystem::path& path, int64_t& value) {
  std::ifstream stream(path);
  return static_cast<bool>(stream >> value);
}

}  // namespace

int64_t resident_bytes() {
  return kib_field("/proc/self/status", "VmRSS");
}

int64_t peak_resident_bytes() {
  return kib_field("/proc/self/status", "VmHWM");
}

bool reset_peak_resident() {
  std::ofstream stream("/proc/self/clear_refs");
  stream << "5" << std::flush;
  return static_cast<bool>(stream);
}

int64_t memory_limit_bytes(const std::filesystem::path& root) {
  int64_t limit = kib_field(root / "proc/meminfo", "MemTotal");
  for (const std::filesystem::path& folder : group_folders(root, "memory")) {
    for (const char* name : {"memory.max", "memory.limit_in_bytes"}) {
      int64_t bytes = 0;
      if (read_number(folder / name, bytes) && bytes > 0) limit = std::min(limit, bytes);
    }
  }
  return limit;
}

int64_t usable_threads(const std::filesystem::path& root) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  int64_t threads = ::sched_getaffinity(0, sizeof(allowed), &allowed) == 0
                        ? CPU_COUNT(&allowed)
                        : ::sysconf(_SC_NPROCESSORS_ONLN);
  for (const std::filesystem::path& folder : group_folders(root, "cpu")) {
    int64_t quota_us = 0;
    int64_t period_us = 0;
    std::ifstream both(folder / "cpu.max");
    if (!(both >> quota_us >> period_us)) {
      if (!read_number(folder / "cpu.cfs_quota_us", quota_us)) continue;
      if (!read_number(folder / "cpu.cfs_period_us", period_us)) continue;
    }
    if (quota_us > 0 && period_us > 0) {
      threads = std::min(threads, (quota_us + period_us - 1) / period_us);
    }
  }
  return std::max<int64_t>(1, threads);
}

MachineInfo describe_machine() {
  MachineInfo machine;
  utsname names{};
  if (::uname(&names) == 0) {
    machine.host = names.nodename;
    machine.system = std::string(names.sysname) + " " + names.release + " " + names.machine;
  }
  machine.cpu = field_of("/proc/cpuinfo", "model name");
  machine.threads = usable_threads();
  machine.memory_bytes = memory_limit_bytes();
  return machine;
}

}  // namespace longspan
