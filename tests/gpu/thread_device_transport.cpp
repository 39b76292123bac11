#include "comm/run_ranks.h"
#include "device_transports.h"
#include "gpu_test.h"

namespace longspan {

void on_ranks(const std::function<void(Communicator&)>& body) {
  run_ranks(4, {.stall_timeout_s = 60, .device_memory = device_memory(kGpu)},
            [&](Communicator& comm) {
              const DeviceThread on(device_of_rank(kGpu, comm.rank()));
              body(comm);
            });
}

}  // namespace longspan
