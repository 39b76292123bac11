// Ranks on one GPU or on all that are visible exchange device memory: messages and collectives with
// queues of their own, in every order of send and receive, with work before and after each.
#include <algorithm>
#include <numeric>

#include <ATen/CPUGeneratorImpl.h>

#include "base/error.h"
#include "base/random.h"
#include "device_transports.h"
#include "gpu_test.h"

namespace longspan {
namespace {

class GpuCommunicator : public GpuTest {};

template <typename T>
std::span<T> span_of(const at::Tensor& tensor) {
  return {static_cast<T*>(tensor.data_ptr()), static_cast<size_t>(tensor.nbytes()) / sizeof(T)};
}

// Work that takes the device a while, so that a missing order shows.
at::Tensor late_values(double value, int64_t count) {
  at::Tensor busy = at::ones({1024, 1024}, at::TensorOptions(at::kFloat).device(at::kCUDA));
  for (int i = 0; i < 20; ++i) busy = busy.mm(busy).clamp_max(1.0);
  return at::full({count}, value, busy.options()) * busy[0][0];
}

TEST_F(GpuCommunicator, MessagesArriveInOrderOfTheQueues) {
  for (const bool receive_first : {true, false}) {
    on_ranks([&](Communicator& comm) {
      if (comm.size() == 1) return;
      const int64_t count = 100000;
      for (int round = 0; round < 6; ++round) {
        const int right = (comm.rank() + 1) % comm.size();
        const int left = (comm.rank() + comm.size() - 1) % comm.size();
        const at::Tensor incoming = late_values(-1, count);
        const at::Tensor outgoing = late_values(10 * round + comm.rank(), count);
        Work receive;
        if (receive_first)
          receive = comm.receive(left, round, "ring", span_of<std::byte>(incoming));
        Work send = comm.send(right, round, "ring", span_of<std::byte>(outgoing));
        if (!receive_first) {
          send.wait();  // nobody may have asked for it yet
          outgoing.fill_(-2);
          receive = comm.receive(left, round, "ring", span_of<std::byte>(incoming));
        }
        receive.wait();
        EXPECT_EQ(incoming.min().item<float>(), 10 * round + left);
        EXPECT_EQ(incoming.max().item<float>(), 10 * round + left);
        send.wait();
        outgoing.fill_(-3);
      }
    });
  }
}

// Many messages of one round, in places of one tensor that are mixed up on the way and partly next
// to each other.
TEST_F(GpuCommunicator, RoundsOfManyMessages) {
  on_ranks([](Communicator& comm) {
    const int right = (comm.rank() + 1) % comm.size();
    const int left = (comm.rank() + comm.size() - 1) % comm.size();
    if (comm.size() == 1) return;
    for (uint64_t round = 0; round < 8; ++round) {
      RandomStream draws(5, "rounds on the device", round);
      const auto messages = static_cast<int64_t>(draws.between(1, 200));
      const int64_t count = draws.between(1, 3000);
      std::vector<int64_t> place(static_cast<size_t>(messages));
      std::iota(place.begin(), place.end(), 0);
      for (size_t i = place.size(); i > 1 && round % 2 == 0; --i) {
        std::swap(place[i - 1], place[draws.below(i)]);
      }
      const at::Tensor incoming = late_values(-1, messages * count).view({messages, count});
      const at::Tensor outgoing =
          late_values(comm.rank(), messages * count).view({messages, count});
      const at::Tensor numbers = at::arange(messages, outgoing.options()).view({messages, 1});
      outgoing.add_(numbers, 10);
      std::vector<IncomingMessage> receives;
      std::vector<OutgoingMessage> sends;
      for (int64_t i = 0; i < messages; ++i) {
        sends.push_back({right, i, span_of<std::byte>(outgoing[i])});
        receives.push_back({left, i, span_of<std::byte>(incoming[place[static_cast<size_t>(i)]])});
      }
      if (round % 4 == 1) {
        comm.exchange({}, sends, "sends first").wait();
        outgoing.fill_(-2);
        comm.exchange(receives, {}, "then receives").wait();
      } else {
        comm.exchange(receives, sends, "a round").wait();
        outgoing.fill_(-3);
      }
      const at::Tensor arrived = incoming.cpu();
      for (int64_t i = 0; i < messages; ++i) {
        const at::Tensor row = arrived[place[static_cast<size_t>(i)]];
        const auto expected = static_cast<float>(left + 10 * i);
        EXPECT_EQ(row.min().item<float>(), expected) << "round " << round << ", message " << i;
        EXPECT_EQ(row.max().item<float>(), expected) << "round " << round << ", message " << i;
      }
    }
  });
}

TEST_F(GpuCommunicator, Collectives) {
  on_ranks([](Communicator& comm) {
    for (int round = 0; round < 4; ++round) {
      const int64_t count = 5000 + round;
      const double mine = round + 10.0 * comm.rank();
      const at::Tensor own = late_values(mine, count);
      const int ranks = comm.size();
      const double sum_of_ranks = ranks * (ranks - 1) / 2;
      const at::Tensor gathered = at::empty({ranks, count}, own.options());
      comm.all_gather(span_of<std::byte>(own), span_of<std::byte>(gathered), "gather");
      own.fill_(-1);  // after all have read it
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(gathered[rank].min().item<float>(), round + 10.0 * rank);
        EXPECT_EQ(gathered[rank].max().item<float>(), round + 10.0 * rank);
      }
      const at::Tensor input = late_values(mine, ranks * count);
      const at::Tensor sum = at::empty({count}, input.options());
      comm.reduce_scatter(span_of<const float>(input), span_of<float>(sum), "scatter");
      input.fill_(-1);
      EXPECT_EQ(sum.min().item<float>(), ranks * round + 10 * sum_of_ranks);
      EXPECT_EQ(sum.max().item<float>(), ranks * round + 10 * sum_of_ranks);
      const at::Tensor cast =
          comm.rank() == ranks - 1 ? late_values(mine, count) : late_values(-5, count);
      comm.broadcast(ranks - 1, span_of<std::byte>(cast), "broadcast");
      EXPECT_EQ(cast.min().item<float>(), round + 10.0 * (ranks - 1));
      std::vector<double> total = {1.0};
      comm.all_reduce_sum(total, "sum");
      EXPECT_EQ(total[0], ranks);
    }
  });
}

// In the fixed order, whatever the transport: the same bits on every repeat, and those of the host.
TEST_F(GpuCommunicator, SumsAreThoseOfTheHostInRankOrder) {
  on_ranks([](Communicator& comm) {
    const int64_t count = 30'001;
    const auto input_of = [&](int rank) {
      const auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(rank));
      return at::randn({comm.size(), count}, generator);
    };
    at::Tensor expected = input_of(0)[comm.rank()];
    for (int rank = 1; rank < comm.size(); ++rank)
      expected = expected + input_of(rank)[comm.rank()];
    for (int repeat = 0; repeat < 3; ++repeat) {
      const at::Tensor input = input_of(comm.rank()).to(at::kCUDA);
      const at::Tensor sum = at::empty({count}, input.options());
      comm.reduce_scatter(span_of<const float>(input), span_of<float>(sum), "scatter");
      EXPECT_TRUE(sum.cpu().equal(expected)) << "repeat " << repeat;
    }
  });
}

// A rank fails while another waits for its message: the wait ends, with the reason, and so does
// what the device waits for.
TEST_F(GpuCommunicator, FailureEndsWaiting) {
  std::string failure;
  try {
    on_ranks([](Communicator& comm) {
      if (comm.size() == 1) throw UserError("the shard is damaged");
      const at::Tensor data = late_values(1, 1000);
      if (comm.rank() == 1) throw UserError("the shard is damaged");
      comm.receive(1, 0, "what never comes", span_of<std::byte>(data)).wait();
    });
  } catch (const std::exception& error) {
    failure = error.what();
  }
  EXPECT_NE(failure.find("the shard is damaged"), std::string::npos) << failure;
}

TEST_F(GpuCommunicator, HostAndDeviceDoNotMix) {
  const auto mixed = [](Communicator& comm) {
    if (comm.size() == 1) throw InternalError("nobody to send to");
    const at::Tensor here = at::zeros({8}, at::kByte);
    const at::Tensor there = here.to(at::kCUDA);
    if (comm.rank() == 0) comm.send(1, 0, "mixed", span_of<std::byte>(here)).wait();
    if (comm.rank() == 1) comm.receive(0, 0, "mixed", span_of<std::byte>(there)).wait();
    comm.barrier("after");
  };
  EXPECT_THROW(on_ranks(mixed), std::exception);
}

}  // namespace
}  // namespace longspan
