#include "comm/test_transports.h"

#include <stdexcept>

#include "base/error.h"
#include "comm/run_ranks.h"

namespace longspan {

void run_wrapped(Communicator& communicator, const TestTransport& transport,
                 const TestRunOptions& options, const std::function<void(Communicator&)>& body) {
  const FaultPlan delays{
      .seed = 11, .delay_probability = 0.1, .delay_us_max = 200, .reorder = true};
  const auto delayed = with_faults(communicator, transport.delays ? delays : FaultPlan{});
  if (!options.faults) return body(transport.delays ? *delayed : communicator);
  const auto faulty = with_faults(*delayed, options.faults(communicator.rank()));
  body(*faulty);
}

Outcome run_on_members(Communicator& everybody, const TestTransport& transport,
                       const TestRunOptions& options,
                       const std::function<void(Communicator&)>& body) {
  Outcome outcome;
  try {
    std::vector<int> members;
    for (int rank = 0; rank < transport.size; ++rank) members.push_back(rank);
    const auto group = everybody.subgroup(members, "members of the test");
    if (!group) return outcome;
    run_rank(*group, [&](Communicator& comm) { run_wrapped(comm, transport, options, body); });
  } catch (...) {
    outcome.failures[everybody.rank()] = describe_failure();
  }
  return outcome;
}

std::string describe_failure() {
  try {
    throw;
  } catch (const DistributedError& error) {
    return text("DistributedError: ", error.what());
  } catch (const UserError& error) {
    return text("UserError: ", error.what());
  } catch (const InternalError& error) {
    return text("InternalError: ", error.what());
  } catch (const InjectedCrash& error) {
    return text("InjectedCrash: ", error.what());
  } catch (const std::exception& error) {
    return text("exception: ", error.what());
  }
}

}  // namespace longspan
