#include "checkpoint/run_folder.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/step_folder.h"
#include "formats/atomic_file.h"
#include "formats/json.h"

namespace longspan {
namespace {

const std::vector<std::string> kReplacedFiles = {"log.jsonl", "config.toml", "report.html",
                                                 "trace.json"};
constexpr const char* kEvents = "tensorboard";
constexpr const char* kLock = "run.lock";

std::vector<std::string> entries_of(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw UserError(text("cannot read the folder ", folder.string(), ": ", error.message(),
                         "; name another folder"));
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool has_log_of_a_run(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "log.jsonl";
  if (!std::filesystem::is_regular_file(path)) return false;
  const std::string content = read_text(path);
  const Json first = Json::parse(content.substr(0, content.find('\n')), nullptr,
                                 /*allow_exceptions=*/false);
  return first.is_object() && first.contains("longspan") && first.contains("config_hash");
}

bool a_run_would_change(const std::string& name) {
  return name == kEvents || is_step_name(name) ||
         std::find(kReplacedFiles.begin(), kReplacedFiles.end(), name) != kReplacedFiles.end();
}

}  // namespace

std::vector<std::string> check_run_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  const std::filesystem::path whole = std::filesystem::weakly_canonical(folder, ignored);
  if (!whole.empty() && whole == whole.root_path()) {
    throw UserError(
        text(folder.string(), " is the root of the file system: name a folder below it"));
  }
  std::vector<std::string> names = entries_of(folder);
  if (latest_step(folder) || has_log_of_a_run(folder)) return {};
  for (const std::string& name : names) {
    if (!a_run_would_change(name)) continue;
    throw UserError(text(folder.string(), " is not the folder of a run and holds ", name,
                         ", which a run would replace or remove: name another folder, or "
                         "move ",
                         name, " away"));
  }
  std::erase(names, kLock);
  return names;
}

void remove_run_leftovers(const std::filesystem::path& folder) {
  for (const std::string& name : kReplacedFiles) remove_leftovers(folder / name);
}

}  // namespace longspan
