// Who started this process, as which rank of how many: read from the variables that launchers set.
//
//   const LaunchInfo launch = read_launch(process_environment());
//   print(launch.description);              // "rank 3 of 8, from torchrun (RANK, WORLD_SIZE, ...)"
//   check_launch(launch, built_with_mpi);
//
// Read in this order: torchrun (Kubernetes PyTorchJob and Ray actors set the same names), Slurm,
// MPI, none. Launchers nest, and then the inner one counts: torchrun inside Slurm or mpirun, and
// mpirun inside a Slurm job, are no contradiction. A set that is incomplete, or two that cannot
// both be true, is a UserError that lists the variables of both.
//
// Pure functions of the look-up, except process_environment(): the only place that reads the
// process environment.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace longspan {

enum class LauncherKind { kNone, kTorchrun, kSlurm, kMpi };

struct LaunchInfo {
  LauncherKind kind = LauncherKind::kNone;
  int rank = 0;
  int world_size = 1;  // 0: not in the environment (PMIX alone); the MPI library knows
  int local_rank = 0;
  bool mpi_available = false;  // an MPI launcher stands behind it, whichever set was read
  std::string master_address;  // torchrun only
  int master_port = 0;
  std::string description;  // one line for the log: what was used, and why

  bool several_processes() const { return kind != LauncherKind::kNone && world_size != 1; }
};

// The value of a variable, or nothing if it is not set.
using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;

EnvironmentLookup process_environment();

LaunchInfo read_launch(const EnvironmentLookup& lookup);

// Refuses, with the command to use instead, what ranks cannot run under: Slurm without MPI, or MPI
// in a build without it. One process is always fine, and so is torchrun.
void check_launch(const LaunchInfo& launch, bool built_with_mpi);

}  // namespace longspan
