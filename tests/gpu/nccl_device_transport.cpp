#include "comm/folder_rendezvous.h"
#include "comm/run_ranks.h"
#include "comm/tcp_world.h"
#include "device_transports.h"
#include "nccl_processes.h"

namespace longspan {
namespace {

ForkedRank self;
int worlds = 0;

}  // namespace

void on_ranks(const std::function<void(Communicator&)>& body) {
  const DeviceThread on(device_of_rank(kGpu, self.rank));
  FolderRendezvous store(self.folder);
  TcpWorld world(store, text("world ", worlds++), self.rank, self.size, {.stall_timeout_s = 20});
  run_rank(*world.communicator(), [&](Communicator& comm) {
    const at::Device device = device_of_rank(kGpu, self.rank);
    world.set_device_link(device_link(comm, device), device_transport(device));
    body(*world.communicator());
  });
}

}  // namespace longspan

int main(int argc, char** argv) {
  longspan::self = longspan::fork_rank_for_each_gpu();
  return longspan::run_tests_of(longspan::self, argc, argv);
}
