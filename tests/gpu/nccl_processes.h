// A process for each visible GPU, for tests and main programs that run over NCCL.
//
//   const ForkedRank self = fork_rank_for_each_gpu();     // first thing in main()
//
// Without a GPU there is one process, and the tests in it are skipped.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "comm/fork_ranks.h"
#include "device/process_device.h"
#include "gpu_test.h"

namespace longspan {

// A child counts: a process that has looked at its GPUs can no longer fork.
inline ForkedRank fork_rank_for_each_gpu() {
  const pid_t counter = fork();
  if (counter == 0) _exit(std::min(visible_gpus(), 8));
  int status = 0;
  waitpid(counter, &status, 0);
  const ForkedRank self = fork_ranks(std::max(1, WIFEXITED(status) ? WEXITSTATUS(status) : 1));
  one_gpu_for_this_process(self.rank);
  return self;
}

inline int run_tests_of(const ForkedRank& self, int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (self.rank != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
  }
  return self.end(RUN_ALL_TESTS());
}

}  // namespace longspan
