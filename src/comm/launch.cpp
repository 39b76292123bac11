#include "comm/launch.h"

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace longspan {
namespace {

class Environment {
 public:
  explicit Environment(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  bool has(const std::string& name) const { return lookup_(name).has_value(); }
  std::string get(const std::string& name) const { return lookup_(name).value_or(""); }

  int number(const std::string& name) const {
    const std::string value = get(name);
    int result = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
    if (error != std::errc() || end != value.data() + value.size() || result < 0) {
      throw UserError(text("environment: ", name, "='", value,
                           "' is not a number of at least 0; correct or unset it"));
    }
    return result;
  }
  int number_or(const std::string& name, int otherwise) const {
    return has(name) ? number(name) : otherwise;
  }

  // "RANK=3, WORLD_SIZE=8", of those that are set.
  std::string list(const std::vector<std::string>& names) const {
    std::string out;
    for (const std::string& name : names) {
      if (has(name)) out += text(out.empty() ? "" : ", ", name, "=", get(name));
    }
    return out;
  }
  bool any(const std::vector<std::string>& names) const { return !list(names).empty(); }

  void require(const std::string& launcher, const std::vector<std::string>& required,
               const std::vector<std::string>& all) const {
    std::string missing;
    for (const std::string& name : required) {
      if (!has(name)) missing += text(missing.empty() ? "" : ", ", name);
    }
    if (missing.empty()) return;
    throw UserError(text("environment: the variables of ", launcher, " are incomplete: set ",
                         list(all), "; missing ", missing,
                         ". Set the missing ones, or unset those that are set"));
  }

 private:
  const EnvironmentLookup& lookup_;
};

// One launcher's answer and the variables that it was read from.
struct LaunchSet {
  std::string name;
  int rank = 0;
  int world_size = 1;  // 0: unknown
  int local_rank = 0;
  std::string variables;
};

void check_range(const LaunchSet& set) {
  if (set.world_size == 0) return;
  if (set.rank < set.world_size && set.local_rank < set.world_size) return;
  throw UserError(text("environment: ", set.name, " variables contradict each other: ",
                       set.variables, "; ranks count from 0 to one below the size"));
}

void check_agreement(const LaunchSet& a, const LaunchSet& b) {
  const bool sizes_known = a.world_size > 0 && b.world_size > 0;
  if (a.rank == b.rank && (!sizes_known || a.world_size == b.world_size)) return;
  throw UserError(text("environment: two launchers contradict each other: ", a.name, " says ",
                       a.variables, "; ", b.name, " says ", b.variables,
                       ". Unset the one that did not start this process"));
}

const std::vector<std::string> kTorchrunNames{
    "RANK",       "WORLD_SIZE",  "LOCAL_RANK", "LOCAL_WORLD_SIZE",
    "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"};
const std::vector<std::string> kSlurmNames{"SLURM_PROCID", "SLURM_NTASKS",       "SLURM_LOCALID",
                                           "SLURM_NODEID", "SLURM_JOB_NODELIST", "SLURM_STEP_ID"};
const std::vector<std::string> kOpenMpiNames{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                             "OMPI_COMM_WORLD_LOCAL_RANK"};
const std::vector<std::string> kPmiNames{"PMI_RANK", "PMI_SIZE"};

std::optional<LaunchSet> read_torchrun(const Environment& environment) {
  // MASTER_ADDR alone is often set for a whole cluster and says nothing about this process.
  if (!environment.any({"RANK", "WORLD_SIZE", "LOCAL_RANK"})) return std::nullopt;
  environment.require("torchrun", {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"},
                      kTorchrunNames);
  LaunchSet set{.name = "torchrun",
                .rank = environment.number("RANK"),
                .world_size = environment.number("WORLD_SIZE"),
                .local_rank = environment.number_or("LOCAL_RANK", 0),
                .variables = environment.list(kTorchrunNames)};
  if (set.world_size == 0) {
    throw UserError(
        text("environment: torchrun says ", set.variables, "; a job has at least one process"));
  }
  check_range(set);
  return set;
}

// A batch script and an allocation's shell carry the job's variables too. Only srun makes tasks,
// and marks them with a step.
std::optional<LaunchSet> read_slurm(const Environment& environment) {
  if (!environment.has("SLURM_PROCID")) return std::nullopt;
  if (!environment.has("SLURM_STEP_ID")) {
    if (environment.number_or("SLURM_NTASKS", 1) <= 1) return std::nullopt;
    throw UserError(text("environment: this Slurm job has several tasks (",
                         environment.list(kSlurmNames),
                         "), but this process was not started by srun (no SLURM_STEP_ID). Write "
                         "srun or mpirun before the command, or ask for --ntasks=1"));
  }
  environment.require("Slurm", {"SLURM_PROCID", "SLURM_NTASKS"}, kSlurmNames);
  LaunchSet set{.name = "Slurm",
                .rank = environment.number("SLURM_PROCID"),
                .world_size = environment.number("SLURM_NTASKS"),
                .local_rank = environment.number_or("SLURM_LOCALID", 0),
                .variables = environment.list(kSlurmNames)};
  check_range(set);
  return set;
}

std::optional<LaunchSet> read_open_mpi(const Environment& environment) {
  if (!environment.any(kOpenMpiNames)) return std::nullopt;
  environment.require("Open MPI", {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, kOpenMpiNames);
  LaunchSet set{.name = "Open MPI",
                .rank = environment.number("OMPI_COMM_WORLD_RANK"),
                .world_size = environment.number("OMPI_COMM_WORLD_SIZE"),
                .local_rank = environment.number_or("OMPI_COMM_WORLD_LOCAL_RANK", 0),
                .variables = environment.list(kOpenMpiNames)};
  check_range(set);
  return set;
}

std::optional<LaunchSet> read_pmi(const Environment& environment) {
  if (environment.any(kPmiNames)) {
    environment.require("PMI", kPmiNames, kPmiNames);
    LaunchSet set{.name = "PMI",
                  .rank = environment.number("PMI_RANK"),
                  .world_size = environment.number("PMI_SIZE"),
                  .variables = environment.list(kPmiNames)};
    check_range(set);
    return set;
  }
  if (!environment.has("PMIX_RANK")) return std::nullopt;
  return LaunchSet{.name = "PMIx",
                   .rank = environment.number("PMIX_RANK"),
                   .world_size = 0,
                   .variables = environment.list({"PMIX_RANK"})};
}

LaunchInfo make_info(LauncherKind kind, const LaunchSet& set, const std::string& remark) {
  LaunchInfo info{
      .kind = kind, .rank = set.rank, .world_size = set.world_size, .local_rank = set.local_rank};
  const std::string size = set.world_size > 0 ? text(" of ", set.world_size) : "";
  info.description =
      text("rank ", set.rank, size, ", from ", set.name, remark, " (", set.variables, ")");
  return info;
}

}  // namespace

EnvironmentLookup process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

LaunchInfo read_launch(const EnvironmentLookup& lookup) {
  const Environment environment(lookup);
  const auto torchrun = read_torchrun(environment);
  const auto open_mpi = read_open_mpi(environment);
  const auto pmi = read_pmi(environment);
  if (open_mpi && pmi) check_agreement(*open_mpi, *pmi);
  if (torchrun) {
    // torchrun itself numbers its workers (GROUP_RANK), whatever started it. Variables set by hand
    // or by a wrapper script must agree with the launcher beneath.
    const auto slurm = environment.has("GROUP_RANK") ? std::nullopt : read_slurm(environment);
    if (slurm) check_agreement(*torchrun, *slurm);
    if (open_mpi && !environment.has("GROUP_RANK")) check_agreement(*torchrun, *open_mpi);
    LaunchInfo info = make_info(LauncherKind::kTorchrun, *torchrun, "");
    info.mpi_available = (open_mpi || pmi) && !environment.has("GROUP_RANK");
    info.master_address = environment.get("MASTER_ADDR");
    info.master_port = environment.number("MASTER_PORT");
    return info;
  }
  if (open_mpi) {
    const char* remark = environment.has("SLURM_PROCID") ? ", mpirun inside a Slurm job" : "";
    LaunchInfo info = make_info(LauncherKind::kMpi, *open_mpi, remark);
    info.mpi_available = true;
    return info;
  }
  if (const auto slurm = read_slurm(environment)) {
    if (pmi) check_agreement(*slurm, *pmi);
    LaunchInfo info = make_info(LauncherKind::kSlurm, *slurm, pmi ? " with " + pmi->name : "");
    info.mpi_available = pmi.has_value();
    return info;
  }
  if (pmi) {
    LaunchInfo info = make_info(LauncherKind::kMpi, *pmi, "");
    info.mpi_available = true;
    return info;
  }
  LaunchInfo info;
  info.description = environment.has("SLURM_PROCID")
                         ? "one process, inside a Slurm job but not started by srun"
                         : "one process, no launcher";
  return info;
}

void check_launch(const LaunchInfo& launch, bool built_with_mpi) {
  if (!launch.several_processes() || launch.kind == LauncherKind::kTorchrun) return;
  if (launch.kind == LauncherKind::kSlurm && !launch.mpi_available) {
    throw UserError(
        text("ranks in several processes talk through MPI, and Slurm started this "
             "one without it (",
             launch.description,
             "; neither PMIX_RANK nor PMI_RANK is set). Use 'srun --mpi=pmix longspan "
             "...' or 'mpirun longspan ...' inside the job, or torchrun for ranks on GPUs"));
  }
  if (!built_with_mpi) {
    throw UserError(text("this longspan was built without MPI, but is one of several processes (",
                         launch.description,
                         "). Build with -DLONGSPAN_MPI=ON, or run one process with --ranks N"));
  }
}

}  // namespace longspan
