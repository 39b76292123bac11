#include "comm/run_ranks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/error.h"
#include "base/random.h"

namespace longspan {
namespace {

using namespace std::chrono_literals;

template <typename Error>
std::string message_of_failure(int size, const RunRanksOptions& options, const RankBody& body) {
  try {
    run_ranks(size, options, body);
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another kind of error: " << error.what();
    return {};
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(RunRanks, EveryRankRunsOnceWithItsNumber) {
  for (const int size : {1, 2, 5, 16}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(size));
    run_ranks(size, {}, [&](Communicator& comm) {
      EXPECT_EQ(comm.size(), size);
      EXPECT_EQ(comm.transport(), "thread");
      ++runs[static_cast<size_t>(comm.rank())];
    });
    for (const auto& count : runs) EXPECT_EQ(count, 1);
  }
}

// Wherever one rank throws among many operations, its own error comes out, not those of the others.
TEST(RunRanks, TheRanksOwnErrorComesOut) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    RandomStream random(seed, "failing rank");
    const int size = static_cast<int>(random.between(2, 6));
    const int victim = static_cast<int>(random.between(0, size - 1));
    const int64_t step_of_failure = random.between(0, 9);
    const std::string message = message_of_failure<UserError>(size, {}, [&](Communicator& comm) {
      std::vector<std::byte> data(100);
      for (int64_t step = 0; step < 10; ++step) {
        const int next = (comm.rank() + 1) % size;
        const int previous = (comm.rank() + size - 1) % size;
        Work incoming = comm.receive(previous, step, "ring", data);
        if (comm.rank() == victim && step == step_of_failure) throw UserError("shard is damaged");
        const std::vector<std::byte> outgoing(100);
        Work work = comm.send(next, step, "ring", outgoing);
        incoming.wait();
        if (step % 3 == 0) comm.barrier("every third");
      }
    });
    EXPECT_EQ(message, "shard is damaged") << "seed " << seed;
  }
}

TEST(RunRanks, OwnErrorGoesBeforeTheStallThatItCaused) {
  const std::string message =
      message_of_failure<UserError>(2, {.stall_timeout_s = 0.2}, [](Communicator& comm) {
        if (comm.rank() == 0) comm.barrier("waiting");
        std::this_thread::sleep_for(700ms);
        throw UserError("the disk is full");
      });
  EXPECT_EQ(message, "the disk is full");
}

TEST(RunRanks, EndedRankIsNamedByThoseWhoWaitForIt) {
  const std::string message =
      message_of_failure<DistributedError>(3, {.stall_timeout_s = 0.2}, [](Communicator& comm) {
        if (comm.rank() == 1) return;
        comm.barrier("last words");
      });
  EXPECT_NE(message.find("rank 1 ended its part"), std::string::npos) << message;
  EXPECT_NE(message.find("last words"), std::string::npos) << message;
}

TEST(RunRanks, WaitsOfAnyLengthMayBeAllowed) {
  run_ranks(2, {.stall_timeout_s = 1e300}, [](Communicator& comm) {
    if (comm.rank() == 0) std::this_thread::sleep_for(20ms);
    comm.barrier("late");
  });
}

TEST(RunRanks, GroupsNest) {
  run_ranks(4, {}, [](Communicator& comm) {
    if (comm.rank() == 0) {
      run_ranks(3, {}, [](Communicator& inner) { inner.barrier("inner group"); });
    }
    comm.barrier("outer group");
  });
}

// A rank that hangs outside of communication: the handler gets the whole story and ends the
// process.
TEST(RunRanksDeathTest, StuckRankEndsTheProcessThroughTheHandler) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto hang = [](Communicator& comm) {
    if (comm.rank() == 1) throw UserError("the disk is full");
    comm.activity("reading from a dead file server");
    std::this_thread::sleep_for(60s);
  };
  const auto end_process = [](const std::string& message) {
    std::fprintf(stderr, "%s\n", message.c_str());
    std::_Exit(3);
  };
  EXPECT_EXIT(run_ranks(2, {.grace_s = 0.3, .on_stuck = end_process}, hang),
              testing::ExitedWithCode(3),
              "the disk is full; rank 0 cannot be ended: it has been in 'reading from a dead file "
              "server'");
  EXPECT_DEATH(run_ranks(2, {.grace_s = 0.3}, hang), "rank 0 cannot be ended");
}

}  // namespace
}  // namespace longspan
