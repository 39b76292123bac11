// The universal log: one JSON object a line. The first line has kind "header" with the resolved
// configuration, the commit and the machine; then one line a step or evaluation, each with "kind",
// "step", "time" (Unix seconds) and the scalars of step_metrics.h.
//
//   JsonlLog log = JsonlLog::start(folder / "log.jsonl", {.config_toml = loaded.toml(), ...});
//   log.write(metrics);
//   JsonlLog log = JsonlLog::resume(path, checkpoint_step, header);    // after a restart
//
// A line is one write to a file opened for appending, so a killed run leaves at most its last line
// unfinished. Resuming removes lines of steps after the resumed one and an unfinished line, in a
// new file that replaces the old one at once, so the log never holds a step twice. A value that is
// not a number is written as null. One thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "observe/step_metrics.h"

namespace longspan {

// What the header line holds, beside the description of this machine (observe/machine.h).
struct RunHeader {
  std::string config_toml;
  std::string config_hash;
  std::string version;
  std::string commit;                // empty: unknown
  std::vector<std::string> kernels;  // what runs each operation, and why
};

class JsonlLog {
 public:
  // A new file with the header; an old one of that name is replaced.
  static JsonlLog start(const std::filesystem::path& path, const RunHeader& header);
  // Goes on in the old file behind `step`, with a line of kind "resume" that holds the new header;
  // starts one if there is none. UserError if a finished line of it is not JSON.
  static JsonlLog resume(const std::filesystem::path& path, int64_t step, const RunHeader& header);

  ~JsonlLog();
  JsonlLog(JsonlLog&& other) noexcept;
  JsonlLog& operator=(JsonlLog&&) = delete;

  // UserError if the disk is full.
  void write(const StepMetrics& metrics);  // kind "step", or "skipped"
  void write(const EvalMetrics& metrics);  // kind "eval"
  void write(std::string_view kind, int64_t step, const Scalars& values);

 private:
  JsonlLog(std::filesystem::path path, int descriptor);
  void append(std::string_view bytes);

  std::filesystem::path path_;
  int descriptor_;
};

}  // namespace longspan
