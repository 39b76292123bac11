// What one process knows beside the run's set-up: where to print, what it was built from, the
// machine's speed, and whether somebody asked it to stop. Its ranks share it.
//
//   std::atomic<bool> stop = false;                       // set by the signal handler
//   TrainProcess process{.console = &std::cout, .stop = &stop, ...};
//
// Read-only while ranks run, but for `stop`.
#pragma once

#include <atomic>
#include <ostream>
#include <string>
#include <vector>

#include "observe/peak_flops.h"
#include "train/run_setup.h"

namespace longspan {

struct TrainProcess {
  std::ostream* console = nullptr;
  std::string version;
  std::string commit;
  PeakFlops peak;                    // of all ranks of the run together
  std::vector<std::string> kernels;  // the audit, a line for each operation
  const std::atomic<bool>* stop = nullptr;
};

}  // namespace longspan
