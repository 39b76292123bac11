#include "comm/test_transports.h"

#include <stdexcept>

#include "base/error.h"

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
