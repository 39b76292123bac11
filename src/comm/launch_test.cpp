#include "comm/launch.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"

namespace longspan {
namespace {

using Variables = std::map<std::string, std::string>;

LaunchInfo launch(const Variables& variables) {
  return read_launch([&variables](const std::string& name) -> std::optional<std::string> {
    const auto entry = variables.find(name);
    if (entry == variables.end()) return std::nullopt;
    return entry->second;
  });
}

Variables merge(Variables a, const Variables& b) {
  a.insert(b.begin(), b.end());
  return a;
}

// The message of the UserError that `action` throws.
template <typename Action>
std::string refusal(const Action& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
  }
}

const Variables kPyTorchJob{
    {"RANK", "3"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}};
const Variables kTorchrun =
    merge(kPyTorchJob, {{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}, {"GROUP_RANK", "1"}});
const Variables kSlurm{{"SLURM_PROCID", "5"},
                       {"SLURM_NTASKS", "6"},
                       {"SLURM_LOCALID", "1"},
                       {"SLURM_NODEID", "2"},
                       {"SLURM_JOB_NODELIST", "n[1-3]"},
                       {"SLURM_STEP_ID", "0"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "2"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                         {"PMIX_RANK", "2"}};

TEST(Launch, EachLauncherAlone) {
  const LaunchInfo none = launch({});
  EXPECT_EQ(none.kind, LauncherKind::kNone);
  EXPECT_EQ(none.world_size, 1);
  EXPECT_FALSE(none.several_processes());

  const LaunchInfo torchrun = launch(kTorchrun);
  EXPECT_EQ(torchrun.kind, LauncherKind::kTorchrun);
  EXPECT_EQ(torchrun.rank, 3);
  EXPECT_EQ(torchrun.world_size, 8);
  EXPECT_EQ(torchrun.local_rank, 1);
  EXPECT_EQ(torchrun.master_address, "node1");
  EXPECT_EQ(torchrun.master_port, 29500);
  expect_parts(torchrun.description, {"rank 3 of 8", "torchrun", "RANK=3", "WORLD_SIZE=8"});
  EXPECT_EQ(launch(kPyTorchJob).local_rank, 0);

  const LaunchInfo slurm = launch(kSlurm);
  EXPECT_EQ(slurm.kind, LauncherKind::kSlurm);
  EXPECT_EQ(slurm.rank, 5);
  EXPECT_EQ(slurm.world_size, 6);
  EXPECT_EQ(slurm.local_rank, 1);
  EXPECT_FALSE(slurm.mpi_available);

  const LaunchInfo mpi = launch(kOpenMpi);
  EXPECT_EQ(mpi.kind, LauncherKind::kMpi);
  EXPECT_EQ(mpi.rank, 2);
  EXPECT_EQ(mpi.world_size, 4);
  EXPECT_TRUE(mpi.mpi_available);

  EXPECT_EQ(launch({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}).world_size, 2);
  const LaunchInfo pmix = launch({{"PMIX_RANK", "1"}});
  EXPECT_EQ(pmix.kind, LauncherKind::kMpi);
  EXPECT_EQ(pmix.world_size, 0);
  EXPECT_TRUE(pmix.several_processes());
}

TEST(Launch, InnerLauncherCounts) {
  EXPECT_EQ(launch(merge(kTorchrun, kSlurm)).kind, LauncherKind::kTorchrun);
  EXPECT_EQ(launch(merge(kTorchrun, kOpenMpi)).kind, LauncherKind::kTorchrun);
  const LaunchInfo nested = launch(merge(kOpenMpi, kSlurm));
  EXPECT_EQ(nested.kind, LauncherKind::kMpi);
  EXPECT_EQ(nested.rank, 2);
  expect_parts(nested.description, {"mpirun inside a Slurm job"});

  const LaunchInfo pmix = launch(merge(kSlurm, {{"PMIX_RANK", "5"}}));
  EXPECT_EQ(pmix.kind, LauncherKind::kSlurm);
  EXPECT_TRUE(pmix.mpi_available);
  EXPECT_NO_THROW(check_launch(pmix, true));
}

TEST(Launch, PartialSetsAreRefused) {
  for (const Variables& whole : {kPyTorchJob, Variables(kOpenMpi)}) {
    for (const auto& [name, value] : whole) {
      if (name == "PMIX_RANK" || name == "OMPI_COMM_WORLD_LOCAL_RANK") continue;
      Variables partial = whole;
      partial.erase(name);
      expect_parts(refusal([&] { launch(partial); }), {"incomplete", "missing " + name});
    }
  }
  expect_parts(refusal([&] {
                 launch({{"LOCAL_RANK", "0"}});
               }),
               {"LOCAL_RANK=0", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"});
  expect_parts(refusal([&] { launch({{"PMI_RANK", "0"}}); }), {"PMI_RANK=0", "missing PMI_SIZE"});
  EXPECT_EQ(launch({{"MASTER_ADDR", "node1"}}).kind, LauncherKind::kNone);
}

TEST(Launch, ContradictionsListBothSides) {
  expect_parts(refusal([&] { launch(merge(kPyTorchJob, kSlurm)); }),
               {"RANK=3", "SLURM_PROCID=5", "SLURM_NTASKS=6"});
  expect_parts(refusal([&] { launch(merge(kPyTorchJob, kOpenMpi)); }),
               {"RANK=3", "OMPI_COMM_WORLD_RANK=2"});
  expect_parts(refusal([&] {
                 launch(merge(kSlurm, {{"PMIX_RANK", "1"}}));
               }),
               {"SLURM_PROCID=5", "PMIX_RANK=1"});
  expect_parts(refusal([&] {
                 launch(merge({{"PMIX_RANK", "1"}}, kOpenMpi));
               }),
               {"OMPI_COMM_WORLD_RANK=2", "PMIX_RANK=1"});
  expect_parts(refusal([&] {
                 launch(merge({{"RANK", "8"}}, kPyTorchJob));
               }),
               {"RANK=8", "WORLD_SIZE=8"});
  expect_parts(refusal([&] { launch(merge({{"RANK", "x"}}, kPyTorchJob)); }), {"RANK='x'"});
  expect_parts(refusal([&] {
                 launch(merge({{"RANK", "0"}, {"WORLD_SIZE", "0"}}, kPyTorchJob));
               }),
               {"WORLD_SIZE=0"});
}

TEST(Launch, SlurmWithoutSrun) {
  Variables batch = kSlurm;
  batch.erase("SLURM_STEP_ID");
  expect_parts(refusal([&] { launch(batch); }), {"srun", "SLURM_NTASKS=6"});
  batch["SLURM_NTASKS"] = "1";
  batch["SLURM_PROCID"] = "0";
  EXPECT_EQ(launch(batch).kind, LauncherKind::kNone);
  batch.erase("SLURM_NTASKS");
  const LaunchInfo shell = launch(batch);
  EXPECT_EQ(shell.kind, LauncherKind::kNone);
  expect_parts(shell.description, {"not started by srun"});
}

TEST(Launch, RanksThatMpiOrSlurmStartedNeedMpi) {
  EXPECT_NO_THROW(check_launch(launch({}), false));
  EXPECT_NO_THROW(check_launch(launch(kOpenMpi), true));
  expect_parts(refusal([&] { check_launch(launch(kOpenMpi), false); }),
               {"without MPI", "LONGSPAN_MPI=ON"});
  EXPECT_NO_THROW(check_launch(launch(kTorchrun), false));
  expect_parts(refusal([&] { check_launch(launch(kSlurm), true); }),
               {"srun --mpi=pmix", "PMIX_RANK"});
  const Variables single =
      merge({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}}, kTorchrun);
  EXPECT_NO_THROW(check_launch(launch(single), true));
}

TEST(Launch, ProcessEnvironment) {
  EXPECT_TRUE(process_environment()("PATH").has_value());
  EXPECT_FALSE(process_environment()("LONGSPAN_NO_SUCH_VARIABLE").has_value());
}

}  // namespace
}  // namespace longspan
