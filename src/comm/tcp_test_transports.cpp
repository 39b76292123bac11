#include <gtest/gtest.h>

#include <memory>

#include "comm/folder_rendezvous.h"
#include "comm/fork_ranks.h"
#include "comm/tcp_world.h"
#include "comm/test_transports.h"

namespace longspan {
namespace {

ForkedRank self;
int worlds = 0;

}  // namespace

std::vector<TestTransport> test_transports() {
  std::vector<TestTransport> all;
  for (int size = 1; size <= self.size; ++size) {
    all.push_back({.name = "tcp", .size = size});
    all.push_back({.name = "tcp_delays", .size = size, .delays = true});
  }
  return all;
}

std::vector<TestTransport> failing_test_transports() {
  return {{.name = "tcp", .size = self.size},
          {.name = "tcp_delays", .size = self.size, .delays = true}};
}

std::vector<int> local_ranks(const TestTransport& transport) {
  if (self.rank >= transport.size) return {};
  return {self.rank};
}

Outcome run_on(const TestTransport& transport, const TestRunOptions& options,
               const std::function<void(Communicator&)>& body) {
  FolderRendezvous store(self.folder);
  TcpWorld world(store, text("world ", worlds++), self.rank, self.size,
                 {.stall_timeout_s = options.stall_timeout_s});
  return run_on_members(*world.communicator(), transport, options, body);
}

}  // namespace longspan

// Every process runs all tests in the same order; rank 0 reports progress, all report failures.
int main(int argc, char** argv) {
  longspan::self = longspan::fork_ranks(4);
  testing::InitGoogleTest(&argc, argv);
  if (longspan::self.rank != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
  }
  return longspan::self.end(RUN_ALL_TESTS());
}
