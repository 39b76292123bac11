// Starts the ranks of a test as processes: this one is rank 0 and starts the others, each as the
// same program from the fork on.
//
//   const ForkedRank self = fork_ranks(4);      // before any thread, library or file is in use
//   ... every process: its part, with a store in self.folder ...
//   return self.end(result);                    // rank 0 waits for the others
//
// The exit code is not zero if any process had such a one or was killed.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"

namespace longspan {

struct ForkedRank {
  int rank = 0;
  int size = 1;
  std::string folder;
  std::vector<pid_t> others;  // of rank 0

  int end(int result) const {
    if (rank != 0) return result;
    for (const pid_t other : others) {
      int status = 0;
      waitpid(other, &status, 0);
      if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) result = result != 0 ? result : 1;
    }
    std::filesystem::remove_all(folder);
    return result;
  }
};

inline ForkedRank fork_ranks(int size) {
  const auto folder = std::filesystem::temp_directory_path() / text("longspan_ranks_", getpid());
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  ForkedRank self{.rank = 0, .size = size, .folder = folder.string(), .others = {}};
  for (int rank = 1; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      self.rank = rank;
      self.others.clear();
      return self;
    }
    self.others.push_back(child);
  }
  return self;
}

}  // namespace longspan
