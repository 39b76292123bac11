// How every transport fails: what communicator.h promises about errors, stalls, crashes and lost
// messages. Every rank must meet an error that names rank and operation, soon, and never hang.

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "base/error.h"
#include "comm/communicator.h"
#include "comm/test_transports.h"

namespace longspan {
namespace {

class CommunicatorFailureTest : public testing::TestWithParam<TestTransport> {
 protected:
  // Runs a body that must fail on every rank; returns the failures of this process's ranks.
  std::map<int, std::string> expect_all_fail(const TestRunOptions& options,
                                             const std::function<void(Communicator&)>& body) {
    const auto begin = std::chrono::steady_clock::now();
    const Outcome outcome = run_on(GetParam(), options, body);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(elapsed.count(), 20) << "a failure must end the job promptly";
    for (const int rank : local_ranks(GetParam())) {
      EXPECT_TRUE(outcome.failures.count(rank)) << "rank " << rank << " met no error" << outcome;
    }
    return outcome.failures;
  }
};

void expect_text(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
}

TEST_P(CommunicatorFailureTest, SizesThatDifferAreAnError) {
  for (const auto& [sent, expected] : std::vector<std::pair<size_t, size_t>>{
           {10, 11}, {0, 1}, {1, 0}, {50'000, 10}, {10, 50'000}, {2'000'000, 3'000'000}}) {
    const auto failures = expect_all_fail({}, [sent = sent, expected = expected](auto& comm) {
      Bytes data(comm.rank() == 0 ? sent : expected);
      if (comm.rank() == 0) comm.send(1, 0, "mismatched send", view(data)).wait();
      if (comm.rank() == 1) comm.receive(0, 0, "mismatched receive", data).wait();
      comm.barrier("after");
    });
    if (failures.count(1)) {
      expect_text(failures.at(1), "InternalError");
      expect_text(failures.at(1), text(sent));
      expect_text(failures.at(1), text(expected));
    }
  }
}

TEST_P(CommunicatorFailureTest, CollectivesThatDifferAreAnError) {
  const auto sizes = expect_all_fail({}, [](Communicator& comm) {
    std::vector<double> values(comm.rank() == 1 ? 3000 : 4000, 1.0);
    comm.all_reduce_sum(values, "uneven sum");
    comm.barrier("after");
  });
  for (const auto& [rank, failure] : sizes) expect_text(failure, "uneven sum");
  const auto names = expect_all_fail({}, [](Communicator& comm) {
    comm.barrier(comm.rank() == 1 ? "gradients, layer 4" : "gradients, layer 3");
    comm.barrier("after");
  });
  for (const auto& [rank, failure] : names) {
    expect_text(failure, "gradients, layer 3");
    expect_text(failure, "gradients, layer 4");
  }
}

TEST_P(CommunicatorFailureTest, StallNamesTheRankAndWhatItDoes) {
  const int culprit = GetParam().size - 1;
  const auto failures = expect_all_fail({.stall_timeout_s = 0.8}, [culprit](Communicator& comm) {
    comm.barrier("start");
    if (comm.rank() == culprit) {
      comm.activity("attention forward, layer 3");
      std::this_thread::sleep_for(std::chrono::milliseconds(1800));
    }
    Bytes data(100);
    if (comm.rank() == 0) comm.receive(culprit, 0, "attention out, layer 3", data).wait();
    comm.barrier("attention out, layer 3");
  });
  for (const auto& [rank, failure] : failures) {
    expect_text(failure, "DistributedError");
    expect_text(failure, text("rank ", culprit, " has been in 'attention forward, layer 3'"));
    expect_text(failure, "in 'attention out, layer 3'");
  }
}

TEST_P(CommunicatorFailureTest, StallIsTracedThroughThoseWhoWait) {
  const auto failures = expect_all_fail({.stall_timeout_s = 0.8}, [](Communicator& comm) {
    Bytes data(10);
    if (comm.rank() == 0) comm.receive(1, 0, "first leg", data).wait();
    if (comm.rank() == 1) comm.receive(2, 0, "second leg", data).wait();
    if (comm.rank() == 2) {
      comm.activity("reading documents");
      std::this_thread::sleep_for(std::chrono::milliseconds(1800));
    }
    comm.barrier("after");
  });
  for (const auto& [rank, failure] : failures) {
    expect_text(failure, "rank 2 has been in 'reading documents'");
  }
}

TEST_P(CommunicatorFailureTest, CircleOfWaitsIsReported) {
  const auto failures = expect_all_fail({.stall_timeout_s = 0.8}, [](Communicator& comm) {
    Bytes data(10);
    const int previous = (comm.rank() + comm.size() - 1) % comm.size();
    comm.receive(previous, 0, "nobody sends", data).wait();
  });
  for (const auto& [rank, failure] : failures) {
    expect_text(failure, "ranks wait for each other");
    expect_text(failure, "nobody sends");
  }
}

TEST_P(CommunicatorFailureTest, AbortEndsAllWaiting) {
  const auto failures = expect_all_fail({}, [](Communicator& comm) {
    const auto everybody = comm.subgroup(all_ranks_of(comm), "everybody");
    Bytes data(10);
    if (comm.rank() == 0) {
      everybody->abort("out of patience");
      comm.barrier("never complete");
    } else if (comm.rank() % 2 == 0) {
      everybody->receive(0, 0, "never sent", data).wait();
    } else {
      comm.barrier("never complete");
    }
  });
  for (const auto& [rank, failure] : failures) {
    expect_text(failure, "DistributedError");
    expect_text(failure, "out of patience");
  }
}

TEST_P(CommunicatorFailureTest, CrashReachesEveryRank) {
  const int victim = GetParam().size - 1;
  const auto plan = [victim](int rank) {
    FaultPlan faults;
    if (rank == victim) faults.faults = {{Fault::Kind::kCrash, "layer 2", 1}};
    return faults;
  };
  const auto failures = expect_all_fail({.faults = plan}, [](Communicator& comm) {
    for (int step = 0; step < 3; ++step) {
      for (int layer = 0; layer < 4; ++layer) {
        Bytes data(5'000), incoming(5'000);
        const int next = (comm.rank() + 1) % comm.size();
        const int previous = (comm.rank() + comm.size() - 1) % comm.size();
        const std::string op = text("ring, layer ", layer);
        Work receive = comm.receive(previous, layer, op, incoming);
        Work send = comm.send(next, layer, op, view(data));
        receive.wait();
        send.wait();
      }
    }
  });
  for (const auto& [rank, failure] : failures) {
    expect_text(failure, rank == victim ? "InjectedCrash" : "DistributedError");
    expect_text(failure, text("injected crash of rank ", victim, " in 'ring, layer 2'"));
  }
}

TEST_P(CommunicatorFailureTest, DroppedMessageIsNamed) {
  const auto plan = [](int rank) {
    FaultPlan faults;
    if (rank == 0) faults.faults = {{Fault::Kind::kDrop, "layer 1", 0}};
    return faults;
  };
  const auto failures =
      expect_all_fail({.stall_timeout_s = 0.8, .faults = plan}, [](Communicator& comm) {
        for (int layer = 0; layer < 3; ++layer) {
          Bytes data(100);
          const std::string op = text("handover, layer ", layer);
          if (comm.rank() == 0) comm.send(1, layer, op, view(data)).wait();
          if (comm.rank() == 1) comm.receive(0, layer, op, data).wait();
        }
        comm.barrier("after the handover");
      });
  for (const auto& [rank, failure] : failures) {
    expect_text(failure, "DistributedError");
    expect_text(failure, "handover, layer 1");
  }
}

TEST_P(CommunicatorFailureTest, InjectedStallIsNamed) {
  const auto plan = [](int rank) {
    FaultPlan faults;
    if (rank == 1) faults.faults = {{Fault::Kind::kStall, "sum", 2, 1.8}};
    return faults;
  };
  const auto failures =
      expect_all_fail({.stall_timeout_s = 0.8, .faults = plan}, [](Communicator& comm) {
        std::vector<double> values(10);
        for (int step = 0; step < 5; ++step) comm.all_reduce_sum(values, "sum of losses");
      });
  for (const auto& [rank, failure] : failures) {
    expect_text(failure, "rank 1 has been in 'injected stall before 'sum of losses''");
  }
}

TEST_P(CommunicatorFailureTest, MisuseIsRefused) {
  const auto failures = expect_all_fail({}, [](Communicator& comm) {
    Bytes data(1);
    const Work work = comm.send(comm.rank(), 0, "to myself", view(data));
  });
  for (const auto& [rank, failure] : failures) expect_text(failure, "to myself");
  expect_all_fail({}, [](Communicator& comm) { comm.subgroup({0, 0}, "twice"); });
  expect_all_fail({}, [](Communicator& comm) {
    std::vector<float> input(1), own(2);
    comm.reduce_scatter(std::span<const float>(input), std::span<float>(own), "odd blocks");
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, CommunicatorFailureTest,
                         testing::ValuesIn(failing_test_transports()),
                         [](const auto& each) { return text(each.param); });

}  // namespace
}  // namespace longspan
