// Starts the ranks of a group as threads, and ends them all when one fails.
//
//   run_ranks(4, {}, [&](Communicator& comm) { train(comm, config); });
//
// The first failure that is a rank's own leaves run_ranks as its exception, after all threads have
// ended; the errors that other ranks meet because of it are dropped. A rank that is stuck outside
// of communication cannot be ended: threads cannot be killed, and what they refer to must outlive
// them. If a rank is still running `grace_s` after the failure, `on_stuck` gets the message (the
// failure, and what each stuck rank is doing); it should print it and end the process with code 3.
// If it returns, or there is none, the process ends by std::terminate with that message as its
// exception: never a hang.
//
// Processes (MPI) run one rank each: run_rank() does for one what run_ranks() does for a group.
//
// Threads: blocks its caller, which is no rank itself. Several groups may run at the same time.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/device_memory.h"

namespace longspan {

struct RunRanksOptions {
  double stall_timeout_s = 300;
  double grace_s = 10;
  std::shared_ptr<DeviceMemory> device_memory = nullptr;  // of runs on a device
  std::function<void(const std::string& message)> on_stuck = {};
};

using RankBody = std::function<void(Communicator&)>;

void run_ranks(int size, const RunRanksOptions& options, const RankBody& body);

// Runs the body; if it throws, aborts the communicator with "rank r failed: ..." and throws on.
void run_rank(Communicator& communicator, const RankBody& body);

}  // namespace longspan
