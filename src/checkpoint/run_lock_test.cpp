#include "checkpoint/run_lock.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "formats/json.h"
#include "formats/test_folder.h"

namespace longspan {
namespace {

std::string refusal(const std::filesystem::path& folder) {
  try {
    const RunLock lock(folder);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(RunLock, OneRunAtATimeInAFolder) {
  const TestFolder test;
  std::optional<RunLock> lock(std::in_place, test / "runs/a");
  ASSERT_TRUE(lock->held());
  EXPECT_EQ(refusal(test / "runs/b"), "");
  for (int again = 0; again < 2; ++again) {  // a refusal leaves the lock alone
    const std::string message = refusal(test / "runs/a");
    for (const std::string& part :
         {(test / "runs/a").string(), text("process ", ::getpid()), std::string("output.folder")}) {
      EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' not in: " << message;
    }
  }
  lock.reset();
  EXPECT_EQ(refusal(test / "runs/a"), "");
}

TEST(RunLock, NothingStaysOfALockUnderWhichNothingWasWritten) {
  const TestFolder test;
  test.write("there/file", "mine");
  { const RunLock lock(test / "new/runs/a"); }
  EXPECT_FALSE(std::filesystem::exists(test / "new"));
  { const RunLock lock(test / "there"); }
  { const RunLock lock(test / "there/runs/a"); }
  EXPECT_EQ(refusal(test / "there/file/runs").find("another run"), std::string::npos);
  EXPECT_NE(refusal(test / "there/file/runs"), "");
  int64_t entries = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(test.path())) {
    entries += !entry.path().empty();
  }
  EXPECT_EQ(entries, 2);  // "there" and its file
  {
    const RunLock lock(test / "new/runs/a");
    test.write("new/runs/a/log", "a line");
  }
  EXPECT_EQ(read_text(test / "new/runs/a/log"), "a line");
}

TEST(RunLock, GoesWithAKilledProcess) {
  const TestFolder test;
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(::pipe(pipe_ends.data()), 0);
  const ::pid_t child = ::fork();
  if (child == 0) {
    const RunLock lock(test / "run");
    const char ready = 1;
    if (::write(pipe_ends[1], &ready, 1) != 1) ::_exit(1);
    ::pause();
  }
  char ready = 0;
  ASSERT_EQ(::read(pipe_ends[0], &ready, 1), 1);
  EXPECT_NE(refusal(test / "run").find(text("process ", child)), std::string::npos);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
  EXPECT_TRUE(std::filesystem::exists(test / "run/run.lock"));
  EXPECT_EQ(refusal(test / "run"), "");
}

// Holders remove the file when they go: nobody may hold a lock on a file without a name.
TEST(RunLock, NeverTwoHoldersWhileManyCome) {
  const TestFolder test;
  std::atomic<int> holders = 0;
  std::atomic<int> taken = 0;
  std::atomic<bool> overlap = false;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int attempt = 0; attempt < 500; ++attempt) {
        try {
          const RunLock lock(test.path());
          if (++holders != 1) overlap = true;
          ++taken;
          --holders;
        } catch (const UserError&) {
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(overlap);
  EXPECT_GT(taken, 0);
}

}  // namespace
}  // namespace longspan
