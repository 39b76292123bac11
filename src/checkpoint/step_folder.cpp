#include "checkpoint/step_folder.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "base/check.h"
#include "checkpoint/publish_folder.h"
#include "formats/json.h"

namespace longspan {
namespace {

constexpr const char* kMark = "COMPLETE";
constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kPartialSuffix = ".partial";

// N of "step-N"; none if the name is anything else.
std::optional<int64_t> step_of_name(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

std::string_view without_partial(std::string_view name) {
  if (name.ends_with(kPartialSuffix)) name.remove_suffix(kPartialSuffix.size());
  return name;
}

bool has_mark(const std::filesystem::path& folder) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(folder / kMark, ignored);
}

// Without its mark a folder is a leftover, so a removal that is killed half-way does no harm.
void remove_complete_step(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::remove(folder / kMark, error);
  if (error) {
    throw UserError(text("cannot remove ", (folder / kMark).string(), ": ", error.message()));
  }
  remove_folder(folder);
}

}  // namespace

StepFolder::StepFolder(std::filesystem::path run_folder, int64_t step)
    : run_folder_(std::move(run_folder)),
      partial_(partial_step_path(run_folder_, step)),
      final_(step_path(run_folder_, step)) {
  LONGSPAN_CHECK(!has_mark(final_), final_.string(), " is complete already");
  remove_partial_steps(run_folder_);
  make_folder(partial_);
}

StepFolder::~StepFolder() {
  if (published_) return;
  std::error_code ignored;
  std::filesystem::remove_all(partial_, ignored);
  if (!has_mark(final_)) std::filesystem::remove_all(final_, ignored);
}

void StepFolder::publish() {
  publish_folder(partial_, final_);
  write_text_atomic(final_ / kMark, "");
  published_ = true;
}

std::filesystem::path step_path(const std::filesystem::path& run_folder, int64_t step) {
  return run_folder / text(kPrefix, step);
}

std::filesystem::path partial_step_path(const std::filesystem::path& run_folder, int64_t step) {
  return run_folder / text(kPrefix, step, kPartialSuffix);
}

bool is_step_name(const std::string& name) {
  return step_of_name(without_partial(name)).has_value();
}

bool is_complete_step(const std::filesystem::path& run_folder, int64_t step) {
  return has_mark(step_path(run_folder, step));
}

std::vector<int64_t> complete_steps(const std::filesystem::path& run_folder) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(run_folder, error)) {
    const auto step = step_of_name(entry.path().filename().string());
    if (step && has_mark(entry.path())) steps.push_back(*step);
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw UserError(text("cannot list ", run_folder.string(), ": ", error.message()));
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::optional<int64_t> latest_step(const std::filesystem::path& run_folder) {
  const std::vector<int64_t> steps = complete_steps(run_folder);
  if (steps.empty()) return std::nullopt;
  return steps.back();
}

void keep_latest_steps(const std::filesystem::path& run_folder, int64_t keep) {
  LONGSPAN_CHECK(keep >= 1, "keep ", keep);
  const std::vector<int64_t> steps = complete_steps(run_folder);
  for (size_t i = 0; i + static_cast<size_t>(keep) < steps.size(); ++i) {
    remove_complete_step(step_path(run_folder, steps[i]));
  }
}

void remove_partial_steps(const std::filesystem::path& run_folder) {
  std::vector<std::filesystem::path> leftovers;
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(run_folder, missing)) {
    const std::string name = entry.path().filename().string();
    const bool partial = name.ends_with(kPartialSuffix);
    if (is_step_name(name) && (partial || !has_mark(entry.path()))) {
      leftovers.push_back(entry.path());
    }
  }
  for (const auto& folder : leftovers) remove_folder(folder);
}

std::filesystem::path resolve_checkpoint(const std::filesystem::path& path) {
  std::error_code ignored;
  if (has_mark(path)) return path;
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_directory(path, ignored)) {
    throw UserError(text(path.string(),
                         " is a file and no checkpoint: give a folder step-N, or the folder of a "
                         "run (output.folder of its configuration)"));
  }
  if (const auto step = latest_step(path)) return step_path(path, *step);
  throw UserError(text(path.string(),
                       " is no checkpoint and holds none: expected a folder step-N "
                       "with the file ",
                       kMark, " in it, or a run folder with such folders"));
}

}  // namespace longspan
