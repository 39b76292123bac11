#include "run_process.h"

#include <ATen/Parallel.h>

#include <cstdlib>
#include <iostream>

#include "base/error.h"
#include "base/narrow.h"
#include "checkpoint/agreement.h"
#include "comm/run_ranks.h"
#include "comm/thread_communicator.h"
#include "device/device.h"
#include "failure.h"
#include "layers/tensor_memory.h"
#include "observe/machine.h"
#ifdef LONGSPAN_MPI
#include "comm/mpi_communicator.h"
#endif

namespace longspan {

#ifdef LONGSPAN_MPI
struct RunProcess::Mpi {
  MpiSession session;
};
// Reading a large genome takes its time, and hosts differ.
constexpr double kPrepareTimeoutS = 3600;
constexpr bool kBuiltWithMpi = true;
#else
struct RunProcess::Mpi {};
constexpr bool kBuiltWithMpi = false;
#endif

RunProcess::RunProcess() : launch_(read_launch(process_environment())) {
  check_cpu_launch(launch_, kBuiltWithMpi);
  keep_tensor_memory();
#ifdef LONGSPAN_MPI
  if (launch_.several_processes()) {
    mpi_ = std::make_unique<Mpi>();
    launch_.rank = mpi_->session.rank();
    launch_.world_size = mpi_->session.size();
  }
#endif
}

RunProcess::~RunProcess() = default;

bool RunProcess::is_first() const {
  return launch_.rank == 0;
}

Surroundings RunProcess::surroundings() const {
  return {.launcher_ranks = mpi_ ? launch_.world_size : 0,
          .hardware_threads = usable_threads(),
          .gpus = visible_gpus()};
}

std::ostream& RunProcess::console() const {
  static std::ostream nowhere(nullptr);
  return is_first() ? std::cout : nowhere;
}

int64_t RunProcess::local_ranks(const RunConfig& config) const {
  return mpi_ ? 1 : config.layout.ranks;
}

void RunProcess::prepare(const std::function<void()>& body) {
#ifdef LONGSPAN_MPI
  if (mpi_) {
    std::exception_ptr common;
    {
      MpiWorld world(mpi_->session, {.stall_timeout_s = kPrepareTimeoutS});
      const std::unique_ptr<Communicator> comm = world.communicator();
      run_rank(*comm, [&](Communicator&) {
        try {
          agree(*comm, "preparation of the run", body);
        } catch (const UserError&) {
          common = std::current_exception();
        }
      });
    }
    failure_is_common_ = common != nullptr;
    if (common) std::rethrow_exception(common);
    return;
  }
#endif
  body();
}

void RunProcess::run(const RunConfig& config, const std::function<void(Communicator&)>& body) {
  const at::Device device = device_from_name(config.layout.device);
  set_deterministic(config.run.deterministic);
  const auto rank_body = [&](Communicator& comm) {
    const DeviceThread on(device_of_rank(device, comm.rank()));
    at::set_num_threads(narrow<int>(config.layout.threads_per_rank));
    body(comm);
  };
#ifdef LONGSPAN_MPI
  if (mpi_) {
    MpiWorld world(mpi_->session, {.stall_timeout_s = config.run.stall_timeout_s});
    const std::unique_ptr<Communicator> comm = world.communicator();
    return run_rank(*comm, rank_body);
  }
#endif
  RunRanksOptions options{.stall_timeout_s = config.run.stall_timeout_s,
                          .device_memory = device_memory(device)};
  options.on_stuck = [](const std::string& message) {
    std::cerr << "longspan: distributed failure: " << message << std::endl;
    std::_Exit(3);
  };
  run_ranks(narrow<int>(config.layout.ranks), options, rank_body);
}

int RunProcess::fail(const std::exception& error) const {
  if (failure_is_common_) {
    // No process waits for another: all leave by MPI_Finalize, the first behind its message.
    return is_first() ? report_failure(error) : failure_code(error);
  }
  const int exit_code = report_failure(error);
#ifdef LONGSPAN_MPI
  if (mpi_) mpi_->session.end_job(exit_code);
#endif
  return exit_code;
}

}  // namespace longspan
