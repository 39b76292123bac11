// Checkpoint folders that appear whole or not at all.
//
// The checkpoint of step N of a run is `step-N/` in the run's folder. It is written under the name
// `step-N.partial`, synced, renamed, and only then marked by the file COMPLETE. A folder without
// the mark is what a killed save left behind: loaders do not see it and the next save removes it.
//
//   StepFolder folder("runs/a", 120);       // removes leftovers, makes step-120.partial
//   ... write files into folder.path() ...
//   folder.publish();                       // step-120, with COMPLETE
//   keep_latest_steps("runs/a", 2);         // only now may older ones go
//   latest_step("runs/a")                   // 120
//
// A StepFolder destroyed before publish() removes what it wrote. Failures are UserErrors that name
// the path. One object at a time for a run folder; the functions may be called by any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace longspan {

class StepFolder {
 public:
  StepFolder(std::filesystem::path run_folder, int64_t step);
  ~StepFolder();
  StepFolder(const StepFolder&) = delete;
  StepFolder& operator=(const StepFolder&) = delete;

  // Where the files go, until publish().
  const std::filesystem::path& path() const { return partial_; }
  void publish();

 private:
  std::filesystem::path run_folder_;
  std::filesystem::path partial_;
  std::filesystem::path final_;
  bool published_ = false;
};

// `run_folder/step-N`, whether or not it is there.
std::filesystem::path step_path(const std::filesystem::path& run_folder, int64_t step);
// `run_folder/step-N.partial`: where ranks other than the one with the StepFolder write.
std::filesystem::path partial_step_path(const std::filesystem::path& run_folder, int64_t step);
// Whether an entry of this name in a run folder is a checkpoint, complete or half-written.
bool is_step_name(const std::string& name);
bool is_complete_step(const std::filesystem::path& run_folder, int64_t step);
// The steps with complete checkpoints, ascending; none if there is no such folder.
std::vector<int64_t> complete_steps(const std::filesystem::path& run_folder);
std::optional<int64_t> latest_step(const std::filesystem::path& run_folder);
// Removes complete checkpoints but the `keep` highest; keep >= 1.
void keep_latest_steps(const std::filesystem::path& run_folder, int64_t keep);
// Removes what killed saves left behind.
void remove_partial_steps(const std::filesystem::path& run_folder);
// What a user may write where a checkpoint is wanted: a complete step folder itself, or a run
// folder (its latest step). UserError otherwise.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& path);

}  // namespace longspan
