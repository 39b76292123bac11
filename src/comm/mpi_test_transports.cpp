#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

#include "comm/mpi_communicator.h"
#include "comm/test_transports.h"

namespace longspan {
namespace {

std::unique_ptr<MpiSession> session;

}  // namespace

std::vector<TestTransport> test_transports() {
  std::vector<TestTransport> all;
  for (int size = 1; size <= session->size(); ++size) {
    all.push_back({.name = "mpi", .size = size});
    all.push_back({.name = "mpi_delays", .size = size, .delays = true});
  }
  return all;
}

std::vector<TestTransport> failing_test_transports() {
  const int size = session->size();
  return {{.name = "mpi", .size = size}, {.name = "mpi_delays", .size = size, .delays = true}};
}

std::vector<int> local_ranks(const TestTransport& transport) {
  if (session->rank() >= transport.size) return {};
  return {session->rank()};
}

// Small parts, so that ordinary test messages are cut.
Outcome run_on(const TestTransport& transport, const TestRunOptions& options,
               const std::function<void(Communicator&)>& body) {
  MpiWorld world(*session, {.stall_timeout_s = options.stall_timeout_s, .part_bytes = 300'000});
  return run_on_members(*world.communicator(), transport, options, body);
}

}  // namespace longspan

// Every process runs all tests in the same order; rank 0 reports progress, all report failures.
int main(int argc, char** argv) {
  longspan::session = std::make_unique<longspan::MpiSession>();
  testing::InitGoogleTest(&argc, argv);
  if (longspan::session->rank() != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
  }
  const int result = RUN_ALL_TESTS();
  if (result != 0) longspan::session->end_job(result);
  longspan::session.reset();
  return 0;
}
