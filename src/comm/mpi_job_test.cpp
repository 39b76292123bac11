// Whole MPI jobs, seen from outside: whatever happens to one process, mpirun ends soon, with a code
// that is not zero, and where somebody can still speak, with a sentence that names rank and
// operation.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdio>
#include <string>

namespace {

struct JobEnd {
  std::string output;
  int exit_code = 0;
  double seconds = 0;
};

JobEnd run_job(const std::string& how) {
  const std::string command = std::string("timeout -s KILL 60 ") + LONGSPAN_TEST_MPIEXEC +
                              " --bind-to none -n 3 " + LONGSPAN_TEST_PROGRAM + " " + how + " 2>&1";
  const auto begin = std::chrono::steady_clock::now();
  JobEnd end;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {.output = "popen failed", .exit_code = -1};
  char buffer[4096];
  for (size_t count = 0; (count = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    end.output.append(buffer, count);
  }
  const int status = pclose(pipe);
  end.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  end.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return end;
}

void expect_failure(const std::string& how, const std::string& part) {
  const JobEnd end = run_job(how);
  EXPECT_NE(end.exit_code, 0) << how << ": " << end.output;
  EXPECT_NE(end.output.find(part), std::string::npos)
      << how << ": no '" << part << "' in: " << end.output;
  EXPECT_LT(end.seconds, 30) << how << ": " << end.output;
}

TEST(MpiJob, EndsWellWhenNothingHappens) {
  const JobEnd end = run_job("nothing");
  EXPECT_EQ(end.exit_code, 0) << end.output;
  EXPECT_EQ(end.output, "");
}

TEST(MpiJob, KilledRankEndsTheJob) {
  expect_failure("die", "signal 9");
}

TEST(MpiJob, RankThatLeavesEndsTheJob) {
  expect_failure("leave", "finalize");
}

TEST(MpiJob, ThrowingRankEndsTheJob) {
  expect_failure("throw", "the shard is damaged");
}

TEST(MpiJob, StalledRankIsNamedWithItsActivity) {
  expect_failure("stall", "rank 2 has been in 'computing attention'");
}

TEST(MpiJob, StoppedProcessIsNamed) {
  expect_failure("stop", "rank 2 does not answer");
}

}  // namespace
