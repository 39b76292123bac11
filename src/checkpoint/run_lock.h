// One run at a time in a run folder.
//
// Why: two runs that save into one folder would remove each other's half-written checkpoints and
// mix their logs. The lock is flock(2) on the file `run.lock` in the folder, so it goes with the
// process that holds it, however that ends.
//
//   RunLock lock("runs/a");      // makes the folder; UserError if another run holds it
//   ... everything that writes to runs/a ...
//
// The file names the holder. It goes when the lock does, and with it the folders that the lock had
// made if nothing was put into them; after a kill it stays and means nothing. A file system without
// locks gives none: held() is false, and the caller should say so. Ranks of one run share a lock;
// under MPI rank 0 takes it. An object belongs to one thread.
#pragma once

#include <filesystem>
#include <vector>

namespace longspan {

class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& run_folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  bool held() const { return descriptor_ >= 0; }
  // Whether the run folder was not there before.
  bool made_folder() const { return !made_folders_.empty(); }

 private:
  void take();
  void remove_made_folders() const;

  std::filesystem::path path_;
  std::vector<std::filesystem::path> made_folders_;  // the deepest first
  int descriptor_ = -1;
};

}  // namespace longspan
