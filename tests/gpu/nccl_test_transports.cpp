// communicator_test.cpp over NCCL's transport: its messages of host memory, with a device link in
// place. One link serves all worlds: making one takes a second.
#include "comm/folder_rendezvous.h"
#include "comm/run_ranks.h"
#include "comm/tcp_world.h"
#include "comm/test_transports.h"
#include "nccl_processes.h"

namespace longspan {
namespace {

ForkedRank self;
int worlds = 0;
std::shared_ptr<DeviceLink> link;

// After main() there is no driver any more.
class EndOfLink final : public testing::Environment {
 public:
  void TearDown() override { link.reset(); }
};

}  // namespace

std::vector<TestTransport> test_transports() {
  return {{.name = "nccl", .size = self.size},
          {.name = "nccl_delays", .size = self.size, .delays = true}};
}

std::vector<TestTransport> failing_test_transports() {
  return test_transports();
}

std::vector<int> local_ranks(const TestTransport&) {
  return {self.rank};
}

Outcome run_on(const TestTransport& transport, const TestRunOptions& options,
               const std::function<void(Communicator&)>& body) {
  const at::Device device = visible_gpus() > 0 ? device_of_rank(kGpu, self.rank) : at::kCPU;
  const DeviceThread on(device);
  Outcome outcome;
  FolderRendezvous store(self.folder);
  TcpWorld world(store, text("world ", worlds++), self.rank, self.size,
                 {.stall_timeout_s = options.stall_timeout_s});
  const auto everybody = world.communicator();
  try {
    run_rank(*everybody, [&](Communicator& comm) {
      if (!link) link = device_link(comm, device);
      world.set_device_link(link, device_transport(device));
      run_wrapped(comm, transport, options, body);
    });
  } catch (...) {
    outcome.failures[self.rank] = describe_failure();
  }
  return outcome;
}

}  // namespace longspan

int main(int argc, char** argv) {
  longspan::self = longspan::fork_rank_for_each_gpu();
  testing::AddGlobalTestEnvironment(new longspan::EndOfLink);
  return longspan::run_tests_of(longspan::self, argc, argv);
}
