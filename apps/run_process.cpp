#include "run_process.h"

#include <ATen/Parallel.h>

#include <cstdlib>
#include <iostream>

#include "base/error.h"
#include "base/narrow.h"
#include "base/printable.h"
#include "checkpoint/agreement.h"
#include "comm/run_ranks.h"
#include "comm/tcp_world.h"
#include "comm/thread_communicator.h"
#include "device/device.h"
#include "device/process_device.h"
#include "device/tcp_store.h"
#include "failure.h"
#include "layers/tensor_memory.h"
#include "observe/machine.h"
#ifdef LONGSPAN_MPI
#include "comm/mpi_communicator.h"
#endif

namespace longspan {
namespace {

// Reading a large genome takes its time, and hosts differ.
constexpr double kPrepareTimeoutS = 3600;
constexpr double kMeetTimeoutS = 300;
#ifdef LONGSPAN_MPI
constexpr bool kBuiltWithMpi = true;
#else
constexpr bool kBuiltWithMpi = false;
#endif

}  // namespace

#ifdef LONGSPAN_MPI
struct RunProcess::Mpi {
  MpiSession session;
};
#else
struct RunProcess::Mpi {};
#endif

RunProcess::RunProcess() : launch_(read_launch(process_environment())) {
  check_launch(launch_, kBuiltWithMpi);
  keep_tensor_memory();
  if (!launch_.several_processes()) return;
  if (launch_.kind == LauncherKind::kTorchrun) {
    // Each pair of processes has queues of its own on the GPU, which must not wait for each other.
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
    one_gpu_for_this_process(launch_.local_rank);
    store_ = tcp_store(launch_, kMeetTimeoutS);
    return;
  }
#ifdef LONGSPAN_MPI
  mpi_ = std::make_unique<Mpi>();
  launch_.rank = mpi_->session.rank();
  launch_.world_size = mpi_->session.size();
#endif
}

RunProcess::~RunProcess() = default;

bool RunProcess::is_first() const {
  return launch_.rank == 0;
}

bool RunProcess::is_one_rank() const {
  return mpi_ || store_;
}

Surroundings RunProcess::surroundings() const {
  return {.launcher_ranks = is_one_rank() ? launch_.world_size : 0,
          .hardware_threads = usable_threads(),
          .gpus = visible_gpus(),
          .gpu_per_process = store_ != nullptr};
}

std::ostream& RunProcess::console() const {
  static std::ostream nowhere(nullptr);
  return is_first() ? std::cout : nowhere;
}

int64_t RunProcess::local_ranks(const RunConfig& config) const {
  return is_one_rank() ? 1 : config.layout.ranks;
}

void RunProcess::run_one_rank(double stall_timeout_s, at::Device device, const RankBody& body) {
#ifdef LONGSPAN_MPI
  if (mpi_) {
    MpiWorld world(mpi_->session, {.stall_timeout_s = stall_timeout_s});
    return run_rank(*world.communicator(), body);
  }
#endif
  TcpWorld world(*store_, text("world ", worlds_++), launch_.rank, launch_.world_size,
                 {.stall_timeout_s = stall_timeout_s, .connect_timeout_s = kMeetTimeoutS});
  run_rank(*world.communicator(), [&](Communicator& comm) {
    if (device.is_cpu()) return body(comm);
    const DeviceThread on(device);
    world.set_device_link(device_link(comm, device), device_transport(device));
    body(*world.communicator());
  });
}

void RunProcess::prepare(const std::function<void()>& body) {
  if (!is_one_rank()) return body();
  std::exception_ptr common;
  run_one_rank(kPrepareTimeoutS, at::kCPU, [&](Communicator& comm) {
    try {
      agree(comm, "preparation of the run", body);
    } catch (const UserError&) {
      common = std::current_exception();
    }
  });
  failure_is_common_ = common != nullptr;
  if (common) std::rethrow_exception(common);
}

void RunProcess::run(const RunConfig& config, const std::function<void(Communicator&)>& body) {
  const at::Device device = device_from_name(config.layout.device);
  set_deterministic(config.run.deterministic);
  const auto rank_body = [&](Communicator& comm) {
    const DeviceThread on(device_of_rank(device, comm.rank()));
    at::set_num_threads(narrow<int>(config.layout.threads_per_rank));
    body(comm);
  };
  if (is_one_rank()) {
    return run_one_rank(config.run.stall_timeout_s, device_of_rank(device, launch_.rank),
                        rank_body);
  }
  RunRanksOptions options{.stall_timeout_s = config.run.stall_timeout_s,
                          .device_memory = device_memory(device)};
  options.on_stuck = [](const std::string& message) {
    std::cerr << "longspan: distributed failure: " << printable(message) << std::endl;
    std::_Exit(3);
  };
  run_ranks(narrow<int>(config.layout.ranks), options, rank_body);
}

int RunProcess::fail(const std::exception& error) const {
  if (failure_is_common_) {
    // No process waits for another: all leave the usual way, the first behind its message.
    return is_first() ? report_failure(error) : failure_code(error);
  }
  const int exit_code = report_failure(error);
#ifdef LONGSPAN_MPI
  if (mpi_) mpi_->session.end_job(exit_code);
#endif
  return exit_code;
}

}  // namespace longspan
