// Runs a test body on every rank of each transport, for communicator_test.cpp and
// communicator_failure_test.cpp.
//
//   const Outcome outcome = run_on(transport, options, [](Communicator& comm) { ... });
//   EXPECT_TRUE(outcome.failures.empty()) << outcome;
//
// Two programs are built from these files: with thread_test_transports.cpp all ranks run
// here, as threads; with mpi_test_transports.cpp each process of an mpirun job is one rank and sees
// only its own failures. Every call runs on a fresh group, so a test may break its group. Threads:
// call from the main thread only.
#pragma once

#include <functional>
#include <map>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/fault_communicator.h"

namespace longspan {

struct TestTransport {
  std::string name;
  int size = 1;
  bool delays = false;  // wrapped: seeded delays and reordering that must change nothing
};

inline std::ostream& operator<<(std::ostream& out, const TestTransport& transport) {
  return out << transport.name << transport.size;
}

using Bytes = std::vector<std::byte>;

inline ConstBytes view(const Bytes& bytes) {
  return {bytes.data(), bytes.size()};
}

inline std::vector<int> all_ranks_of(const Communicator& comm) {
  std::vector<int> all(static_cast<size_t>(comm.size()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

struct TestRunOptions {
  double stall_timeout_s = 60;
  std::function<FaultPlan(int rank)> faults = {};  // besides the transport's own
};

// Of the ranks that run in this process: what ended their body, with the type of the error.
struct Outcome {
  std::map<int, std::string> failures;
};

inline std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
  for (const auto& [rank, failure] : outcome.failures) {
    out << "\nrank " << rank << ": " << failure;
  }
  return out;
}

std::vector<TestTransport> test_transports();
// Fewer, for tests that wait for a timeout; at least 3 ranks each.
std::vector<TestTransport> failing_test_transports();

Outcome run_on(const TestTransport& transport, const TestRunOptions& options,
               const std::function<void(Communicator&)>& body);

// The ranks of `transport` that run in this process.
std::vector<int> local_ranks(const TestTransport& transport);

// Runs the body on `communicator` inside the wrappers that transport and options ask for.
void run_wrapped(Communicator& communicator, const TestTransport& transport,
                 const TestRunOptions& options, const std::function<void(Communicator&)>& body);
// The same on the first `transport.size` processes of `everybody`, one rank each; others do
// nothing.
Outcome run_on_members(Communicator& everybody, const TestTransport& transport,
                       const TestRunOptions& options,
                       const std::function<void(Communicator&)>& body);
// The text of the exception being handled.
std::string describe_failure();

}  // namespace longspan
