// Starts the ranks of a verb that trains or evaluates: threads of this process, or one process each
// under MPI or torchrun, there with a GPU of its own if the run is on GPUs.
//
//   RunProcess process;                              // reads the launcher's variables
//   try {
//     process.prepare([&] { setup = ...; });         // a user's error here is printed once
//     process.run(setup.config(), [&](Communicator& comm) { ... });
//   } catch (const std::exception& error) {
//     return process.fail(error);
//   }
//
// Main thread. A rank that is stuck outside of communication ends the process with code 3 and its
// name.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/launch.h"
#include "comm/rendezvous.h"
#include "comm/run_ranks.h"
#include "config/config_loader.h"

namespace longspan {

class RunProcess {
 public:
  // Reads the launcher and meets the other processes; UserError if ranks cannot run under it.
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

  // What every process does for itself before there are ranks. A UserError in any of them leaves
  // all of them, after all have done their part; what follows may rely on all being done.
  void prepare(const std::function<void()>& body);
  void run(const RunConfig& config, const std::function<void(Communicator&)>& body);
  // Reports a failure and gives the exit code; leaves at once where other processes may be waiting.
  // What prepare() threw is common to all processes, and the first alone prints it.
  int fail(const std::exception& error) const;

 private:
  struct Mpi;

  bool is_one_rank() const;
  void run_one_rank(double stall_timeout_s, at::Device device, const RankBody& body);

  LaunchInfo launch_;
  std::unique_ptr<Mpi> mpi_;
  std::unique_ptr<RendezvousStore> store_;  // of torchrun's processes
  int worlds_ = 0;
  bool failure_is_common_ = false;
};

}  // namespace longspan
