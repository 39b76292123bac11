// Starts the ranks of a verb that trains or evaluates: threads of this process, or one process each
// under MPI.
//
//   RunProcess process(loaded.config);               // reads the launcher's variables, sets thread
//   counts process.run(setup.num_ranks(), [&](Communicator& comm) { ... });
//
// Main thread. A rank that is stuck outside of communication ends the process with code 3 and its
// name.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/launch.h"
#include "config/config_loader.h"

namespace longspan {

class RunProcess {
 public:
  // Reads the launcher; UserError if CPU ranks cannot run under it.
  RunProcess();
  ~RunProcess();

  const LaunchInfo& launch() const { return launch_; }
  bool is_first() const;
  // What "auto" in a configuration needs to know of this machine and launcher.
  Surroundings surroundings() const;
  // Where rank 0 prints; nowhere on other processes.
  std::ostream& console() const;
  // Ranks of the run that live in this process.
  int64_t local_ranks(const RunConfig& config) const;

  void run(const RunConfig& config, const std::function<void(Communicator&)>& body);
  // Leaves after a failure, where other processes may be waiting.
  int fail(int exit_code) const;

 private:
  struct Mpi;
  LaunchInfo launch_;
  std::unique_ptr<Mpi> mpi_;
};

}  // namespace longspan
