#include <mutex>

#include "comm/run_ranks.h"
#include "comm/test_transports.h"

namespace longspan {

std::vector<TestTransport> test_transports() {
  std::vector<TestTransport> all;
  for (const int size : {1, 2, 3, 4, 8}) {
    all.push_back({.name = "thread", .size = size});
    all.push_back({.name = "thread_delays", .size = size, .delays = true});
  }
  return all;
}

std::vector<TestTransport> failing_test_transports() {
  return {{.name = "thread", .size = 4}, {.name = "thread_delays", .size = 3, .delays = true}};
}

std::vector<int> local_ranks(const TestTransport& transport) {
  std::vector<int> ranks;
  for (int rank = 0; rank < transport.size; ++rank) ranks.push_back(rank);
  return ranks;
}

Outcome run_on(const TestTransport& transport, const TestRunOptions& options,
               const std::function<void(Communicator&)>& body) {
  Outcome outcome;
  std::mutex mutex;
  try {
    run_ranks(transport.size, {.stall_timeout_s = options.stall_timeout_s},
              [&](Communicator& plain) {
                try {
                  run_wrapped(plain, transport, options, body);
                } catch (...) {
                  const std::lock_guard guard(mutex);
                  outcome.failures[plain.rank()] = describe_failure();
                  throw;
                }
              });
  } catch (...) {
    // Already in the outcome, by rank.
  }
  return outcome;
}

}  // namespace longspan
