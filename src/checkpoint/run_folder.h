// What stands in output.folder before a run begins, and whether the run may use it.
//
// Why: a run replaces log.jsonl, config.toml and report.html and removes step folders that are not
// complete. In a folder of something else that would destroy files that longspan did not write.
//
//   const auto others = check_run_folder("runs/a");   // UserError: the root, or names that clash
//   RunLock lock("runs/a");
//   remove_run_leftovers("runs/a");                   // half-written files of killed runs
//
// A folder is a run's if it holds a complete checkpoint or a log.jsonl that begins as longspan's
// does; a new or an empty one may become it, and so may one with other files, if none has a name
// that a run writes. Reads the folder only, but for remove_run_leftovers, which needs the lock. Any
// thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace longspan {

// The names of entries that a folder held before it was a run's, sorted; none of a run's folder.
std::vector<std::string> check_run_folder(const std::filesystem::path& folder);

void remove_run_leftovers(const std::filesystem::path& folder);

}  // namespace longspan
