// Ranks as threads of one process: the transport of laptops, tests and one-host CPU runs.
//
//   ThreadGroup group(4);
//   // on rank r's thread:
//   auto comm = group.communicator(r);
//   comm->all_reduce_sum(norms, "gradient norm");
//
// run_ranks.h starts the threads and handles their failures; prefer it. Messages are copied once,
// from the sender's buffer into the receiver's; sums read the other ranks' buffers directly, each
// rank working on its own slice. Waiting ranks sleep, so more ranks than cores are fine. Buffers
// may lie on the device of options.device_memory; then copies and sums are queued there.
//
// Threads: communicator(r) is called once for each rank, by any thread; the communicator then
// belongs to rank r's thread. The group may be destroyed before its communicators.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/device_memory.h"
#include "comm/stall_report.h"

namespace longspan {

class ThreadWorld;
struct ThreadSubgroup;

struct ThreadGroupOptions {
  double stall_timeout_s = 300;
  std::shared_ptr<DeviceMemory> device_memory = nullptr;  // of runs on a device
};

class ThreadGroup {
 public:
  explicit ThreadGroup(int size, const ThreadGroupOptions& options = {});

  int size() const;
  std::unique_ptr<Communicator> communicator(int rank);
  void abort(std::string_view reason);
  // What each rank is doing at this moment.
  std::vector<RankStatus> statuses() const;
  // Rank r's program is over: whoever waits for it from now on learns so from the stall report.
  void set_finished(int rank);

 private:
  std::shared_ptr<ThreadWorld> world_;
  std::shared_ptr<ThreadSubgroup> everyone_;
};

}  // namespace longspan
