// The one test of every transport: what communicator.h promises, on random ragged input.

#include "comm/communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "base/random.h"
#include "comm/test_transports.h"

namespace longspan {
namespace {

Bytes make_bytes(uint64_t seed, int64_t size_bytes) {
  Bytes bytes(static_cast<size_t>(size_bytes));
  uint64_t state = seed * 0x9e3779b97f4a7c15ULL + 1;
  for (size_t begin = 0; begin < bytes.size(); begin += sizeof(state)) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    std::memcpy(bytes.data() + begin, &state, std::min(sizeof(state), bytes.size() - begin));
  }
  return bytes;
}

// Names a message by its ends and a number, the same on every rank.
uint64_t message_seed(int source, int destination, uint64_t number) {
  return number * 4096 + static_cast<uint64_t>(source) * 64 + static_cast<uint64_t>(destination);
}

class CommunicatorTest : public testing::TestWithParam<TestTransport> {
 protected:
  void expect_success(const std::function<void(Communicator&)>& body) {
    const Outcome outcome = run_on(GetParam(), {}, body);
    EXPECT_TRUE(outcome.failures.empty()) << outcome;
  }
};

TEST_P(CommunicatorTest, RaggedAllToAll) {
  expect_success([](Communicator& comm) {
    const auto ranks = static_cast<size_t>(comm.size());
    for (uint64_t round = 0; round < 30; ++round) {
      RandomStream sizes(3, "ragged all-to-all", round);
      const int64_t largest = sizes.between(0, 1) == 0 ? 40 : 60'000;
      std::vector<Bytes> outgoing(ranks), incoming(ranks), expected(ranks);
      for (int source = 0; source < comm.size(); ++source) {
        for (int destination = 0; destination < comm.size(); ++destination) {
          const bool nothing = sizes.below(4) == 0 || source == destination;
          const int64_t size_bytes = nothing ? 0 : sizes.between(1, largest);
          const Bytes data = make_bytes(message_seed(source, destination, round), size_bytes);
          if (source == comm.rank()) outgoing[static_cast<size_t>(destination)] = data;
          if (destination == comm.rank()) expected[static_cast<size_t>(source)] = data;
        }
      }
      std::vector<ConstBytes> send;
      std::vector<MutableBytes> receive;
      for (size_t rank = 0; rank < ranks; ++rank) {
        incoming[rank].resize(expected[rank].size());
        send.push_back(view(outgoing[rank]));
        receive.push_back(incoming[rank]);
      }
      Work work = comm.all_to_all(send, receive, 5, "ragged exchange");
      work.wait();
      EXPECT_TRUE(work.done());
      EXPECT_EQ(incoming, expected) << "round " << round;
    }
  });
}

// Rounds of many messages, whose two sides list them in different orders and split them
// differently into rounds; some tags occur twice.
TEST_P(CommunicatorTest, RoundsOfManyMessages) {
  expect_success([](Communicator& comm) {
    const int right = (comm.rank() + 1) % comm.size();
    const int left = (comm.rank() + comm.size() - 1) % comm.size();
    if (comm.size() == 1) return;
    for (uint64_t round = 0; round < 4; ++round) {
      RandomStream draws(8, "rounds of many", round);
      std::vector<int64_t> tags;
      std::vector<int64_t> sizes_bytes;
      for (int i = 0; i < 150; ++i) {
        tags.push_back(draws.between(0, 100));
        sizes_bytes.push_back(draws.below(5) == 0 ? 0 : draws.between(1, 3000));
      }
      const size_t messages = tags.size();
      std::vector<Bytes> outgoing, incoming, expected;
      for (size_t i = 0; i < messages; ++i) {
        outgoing.push_back(make_bytes(message_seed(comm.rank(), right, i), sizes_bytes[i]));
        expected.push_back(make_bytes(message_seed(left, comm.rank(), i), sizes_bytes[i]));
        incoming.emplace_back(expected[i].size());
      }
      std::vector<OutgoingMessage> sends;
      for (size_t i = 0; i < messages; ++i) sends.push_back({right, tags[i], view(outgoing[i])});
      // By tag; of one tag in the order of the sender.
      std::vector<size_t> order(messages);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](size_t a, size_t b) { return tags[a] < tags[b]; });
      std::vector<IncomingMessage> receives;
      for (const size_t i : order) receives.push_back({left, tags[i], incoming[i]});
      Work first = comm.exchange(std::span(receives).first(70), std::span(sends).first(20), "a");
      Work second = comm.exchange(std::span(receives).subspan(70), {}, "b");
      Work third = comm.exchange({}, std::span(sends).subspan(20), "c");
      third.wait();
      first.wait();
      second.wait();
      EXPECT_EQ(incoming, expected) << "round " << round;
      EXPECT_NO_THROW(comm.exchange({}, {}, "nothing").wait());
    }
  });
}

TEST_P(CommunicatorTest, TwoExchangesInFlightWaitedForInReverse) {
  expect_success([](Communicator& comm) {
    const auto ranks = static_cast<size_t>(comm.size());
    constexpr size_t kBytes = 30'000;
    std::vector<std::vector<Bytes>> outgoing(2), incoming(2);
    std::vector<Work> works;
    for (size_t exchange = 0; exchange < 2; ++exchange) {
      std::vector<ConstBytes> send(ranks);
      std::vector<MutableBytes> receive(ranks);
      outgoing[exchange].resize(ranks);
      incoming[exchange].resize(ranks);
      for (int peer = 0; peer < comm.size(); ++peer) {
        if (peer == comm.rank()) continue;
        const auto place = static_cast<size_t>(peer);
        outgoing[exchange][place] = make_bytes(message_seed(comm.rank(), peer, exchange), kBytes);
        incoming[exchange][place].resize(kBytes);
        send[place] = view(outgoing[exchange][place]);
        receive[place] = incoming[exchange][place];
      }
      works.push_back(comm.all_to_all(send, receive, static_cast<int64_t>(exchange), "exchange"));
    }
    works[1].wait();
    works[0].wait();
    for (size_t exchange = 0; exchange < 2; ++exchange) {
      for (int peer = 0; peer < comm.size(); ++peer) {
        if (peer == comm.rank()) continue;
        EXPECT_EQ(incoming[exchange][static_cast<size_t>(peer)],
                  make_bytes(message_seed(peer, comm.rank(), exchange), kBytes));
      }
    }
  });
}

TEST_P(CommunicatorTest, SendsWaitedForBeforeAnyReceiveIsPosted) {
  expect_success([](Communicator& comm) {
    for (const int64_t size_bytes : {0, 1, 3'000, 5'000, 100'000, 400'001}) {
      for (int peer = 0; peer < comm.size(); ++peer) {
        if (peer == comm.rank()) continue;
        Bytes data = make_bytes(message_seed(comm.rank(), peer, 1), size_bytes);
        comm.send(peer, 9, "early send", view(data)).wait();
        std::fill(data.begin(), data.end(), std::byte{0});  // ours again after wait()
      }
      for (int peer = 0; peer < comm.size(); ++peer) {
        if (peer == comm.rank()) continue;
        Bytes data(static_cast<size_t>(size_bytes));
        comm.receive(peer, 9, "late receive", data).wait();
        EXPECT_TRUE(data == make_bytes(message_seed(peer, comm.rank(), 1), size_bytes));
      }
    }
  });
}

struct PlannedMessage {
  int64_t tag;
  int64_t size_bytes;
  uint64_t number;
};

// The messages of one pair in the order in which they are sent; tags repeat, and any value is one.
std::vector<PlannedMessage> plan_messages(int source, int destination) {
  const std::vector<int64_t> tags{0,
                                  -1,
                                  7,
                                  std::numeric_limits<int64_t>::max(),
                                  std::numeric_limits<int64_t>::min(),
                                  int64_t{1} << 40};
  RandomStream random(17, "planned messages", message_seed(source, destination, 0));
  std::vector<PlannedMessage> messages;
  for (uint64_t number = 0; number < 40; ++number) {
    const int64_t size_bytes = random.below(5) == 0 ? 0 : random.between(0, 20'000);
    messages.push_back({tags[random.below(tags.size())], size_bytes, number});
  }
  return messages;
}

// Another order of posting in which the messages of each tag keep their order.
std::vector<PlannedMessage> shuffle_between_tags(std::vector<PlannedMessage> messages,
                                                 RandomStream& random) {
  std::vector<PlannedMessage> shuffled;
  while (!messages.empty()) {
    const int64_t tag = messages[random.below(messages.size())].tag;
    const auto first = std::find_if(messages.begin(), messages.end(),
                                    [tag](const PlannedMessage& each) { return each.tag == tag; });
    shuffled.push_back(*first);
    messages.erase(first);
  }
  return shuffled;
}

TEST_P(CommunicatorTest, TagsOutOfOrder) {
  expect_success([](Communicator& comm) {
    RandomStream random(23, "posting order", static_cast<uint64_t>(comm.rank()));
    struct Arrival {
      int source;
      PlannedMessage message;
      Bytes data;
    };
    std::vector<Bytes> outgoing;
    std::vector<Arrival> arrivals;
    std::vector<Work> works;
    arrivals.reserve(1000);
    outgoing.reserve(1000);
    for (int peer = 0; peer < comm.size(); ++peer) {
      if (peer == comm.rank()) continue;
      for (const auto& message : plan_messages(comm.rank(), peer)) {
        outgoing.push_back(
            make_bytes(message_seed(comm.rank(), peer, message.number), message.size_bytes));
        works.push_back(comm.send(peer, message.tag, "tagged", view(outgoing.back())));
      }
      for (const auto& message : shuffle_between_tags(plan_messages(peer, comm.rank()), random)) {
        arrivals.push_back({peer, message, Bytes(static_cast<size_t>(message.size_bytes))});
        works.push_back(comm.receive(peer, message.tag, "tagged", arrivals.back().data));
      }
    }
    for (const int64_t i : random.permutation(static_cast<int64_t>(works.size()))) {
      works[static_cast<size_t>(i)].wait();
    }
    for (const Arrival& arrival : arrivals) {
      EXPECT_TRUE(arrival.data ==
                  make_bytes(message_seed(arrival.source, comm.rank(), arrival.message.number),
                             arrival.message.size_bytes))
          << "tag " << arrival.message.tag << " number " << arrival.message.number;
    }
  });
}

TEST_P(CommunicatorTest, DoneTurnsTrueWithoutWaiting) {
  expect_success([](Communicator& comm) {
    if (comm.size() == 1) return;
    Bytes data(50'000);
    if (comm.rank() == 0) {
      Work work = comm.receive(1, 0, "polled", data);
      while (!work.done()) std::this_thread::yield();
      EXPECT_TRUE(data == make_bytes(5, 50'000));
    } else if (comm.rank() == 1) {
      data = make_bytes(5, 50'000);
      Work work = comm.send(0, 0, "polled", view(data));
      while (!work.done()) std::this_thread::yield();
    }
  });
}

TEST_P(CommunicatorTest, DroppedWorkIsWaitedFor) {
  expect_success([](Communicator& comm) {
    if (comm.size() == 1) return;
    Bytes data(50'000);
    if (comm.rank() == 0) {
      { const Work work = comm.receive(1, 0, "dropped work", data); }
      EXPECT_TRUE(data == make_bytes(6, 50'000));
      Work reused = comm.receive(1, 1, "dropped work", data);
      reused = Work();
      EXPECT_TRUE(data == make_bytes(7, 50'000));
    } else if (comm.rank() == 1) {
      for (int64_t number = 0; number < 2; ++number) {
        data = make_bytes(6 + static_cast<uint64_t>(number), 50'000);
        const Work work = comm.send(0, number, "dropped work", view(data));
      }
    }
  });
}

// Values whose sum depends on the order: large and small ones mixed.
template <typename T>
std::vector<T> make_values(int rank, uint64_t round, size_t count) {
  RandomStream random(31 + round, "values", static_cast<uint64_t>(rank));
  std::vector<T> values(count);
  for (T& value : values) {
    value = static_cast<T>(std::ldexp(random.uniform() - 0.5, static_cast<int>(random.below(30))));
  }
  return values;
}

template <typename T>
bool same_bits(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

template <typename T>
std::vector<T> serial_sum(int ranks, uint64_t round, size_t count) {
  std::vector<T> sum = make_values<T>(0, round, count);
  for (int rank = 1; rank < ranks; ++rank) {
    const std::vector<T> values = make_values<T>(rank, round, count);
    for (size_t i = 0; i < count; ++i) sum[i] += values[i];
  }
  return sum;
}

const std::vector<size_t> kCounts{0, 1, 2, 7, 511, 512, 513, 2500};

template <typename T>
void check_reduce_scatter(Communicator& comm) {
  for (const size_t count : kCounts) {
    const size_t whole = count * static_cast<size_t>(comm.size());
    const std::vector<T> input = make_values<T>(comm.rank(), count, whole);
    std::vector<T> own(count);
    comm.reduce_scatter(std::span<const T>(input), std::span<T>(own), "reduce-scatter");
    const std::vector<T> sum = serial_sum<T>(comm.size(), count, whole);
    const auto expected =
        std::span<const T>(sum).subspan(count * static_cast<size_t>(comm.rank()), count);
    EXPECT_TRUE(same_bits(std::span<const T>(own), expected)) << count << " elements";
  }
}

TEST_P(CommunicatorTest, SumsEqualTheSerialSumBitForBit) {
  expect_success([](Communicator& comm) {
    check_reduce_scatter<float>(comm);
    check_reduce_scatter<double>(comm);
    for (const size_t count : kCounts) {
      std::vector<double> values = make_values<double>(comm.rank(), count, count);
      comm.all_reduce_sum(values, "sum");
      const std::vector<double> expected = serial_sum<double>(comm.size(), count, count);
      EXPECT_TRUE(same_bits<double>(values, expected)) << count << " elements";
    }
  });
}

TEST_P(CommunicatorTest, MaximumAndItsNan) {
  expect_success([](Communicator& comm) {
    constexpr size_t kCount = 100;
    std::vector<double> values = make_values<double>(comm.rank(), 1, kCount);
    std::vector<double> expected = make_values<double>(0, 1, kCount);
    for (int rank = 1; rank < comm.size(); ++rank) {
      const std::vector<double> other = make_values<double>(rank, 1, kCount);
      for (size_t i = 0; i < kCount; ++i) expected[i] = std::max(expected[i], other[i]);
    }
    const auto nan_place = static_cast<size_t>(comm.rank());
    values[nan_place] = std::nan("");
    comm.all_reduce_max(values, "maximum");
    for (size_t i = 0; i < kCount; ++i) {
      if (i < static_cast<size_t>(comm.size())) {
        EXPECT_TRUE(std::isnan(values[i])) << i;
      } else {
        EXPECT_EQ(values[i], expected[i]) << i;
      }
    }
  });
}

TEST_P(CommunicatorTest, GatherAndBroadcast) {
  expect_success([](Communicator& comm) {
    const auto self = static_cast<size_t>(comm.rank());
    const auto ranks = static_cast<size_t>(comm.size());
    for (const size_t block : {size_t{0}, size_t{1}, size_t{333}, size_t{70'000}}) {
      const auto size_bytes = static_cast<int64_t>(block);
      Bytes expected;
      for (int rank = 0; rank < comm.size(); ++rank) {
        const Bytes part = make_bytes(message_seed(rank, 0, 2), size_bytes);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      const Bytes own = make_bytes(message_seed(comm.rank(), 0, 2), size_bytes);
      Bytes apart(ranks * block), in_place(ranks * block);
      comm.all_gather(view(own), apart, "gather");
      EXPECT_TRUE(apart == expected);
      std::copy(own.begin(), own.end(), in_place.begin() + static_cast<long>(self * block));
      comm.all_gather(view(in_place).subspan(self * block, block), in_place, "gather in place");
      EXPECT_TRUE(in_place == expected);
      for (int root = 0; root < comm.size(); ++root) {
        Bytes data =
            comm.rank() == root ? make_bytes(message_seed(root, 0, 3), size_bytes) : Bytes(block);
        comm.broadcast(root, data, "broadcast");
        EXPECT_TRUE(data == make_bytes(message_seed(root, 0, 3), size_bytes));
      }
    }
  });
}

TEST_P(CommunicatorTest, BarrierHoldsUntilTheLastArrives) {
  expect_success([](Communicator& comm) {
    const auto now_s = [] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
          .count();
    };
    for (uint64_t round = 0; round < 10; ++round) {
      RandomStream random(41, "barrier", round * 64 + static_cast<uint64_t>(comm.rank()));
      std::this_thread::sleep_for(std::chrono::microseconds(random.between(0, 3000)));
      std::vector<double> times{now_s(), 0};
      comm.barrier("barrier");
      times[1] = -now_s();
      comm.all_reduce_max(times, "times");
      EXPECT_LE(times[0], -times[1]) << "somebody left before the last one came";
    }
  });
}

// Sends `value` around the members of a group and checks what arrives.
void check_ring(Communicator& group, int value_of_self, const std::vector<int>& values) {
  const int next = (group.rank() + 1) % group.size();
  const int previous = (group.rank() + group.size() - 1) % group.size();
  std::vector<double> sum{static_cast<double>(value_of_self)};
  group.all_reduce_sum(sum, "group sum");
  EXPECT_EQ(sum[0], std::accumulate(values.begin(), values.end(), 0.0));
  if (group.size() == 1) return;
  int received = -1;
  const auto bytes = std::as_writable_bytes(std::span(&received, 1));
  Work incoming = group.receive(previous, 1, "ring", bytes);
  group.send(next, 1, "ring", std::as_bytes(std::span(&value_of_self, 1))).wait();
  incoming.wait();
  EXPECT_EQ(received, values[static_cast<size_t>(previous)]);
}

TEST_P(CommunicatorTest, Subgroups) {
  expect_success([](Communicator& comm) {
    std::vector<int> low, high, reversed;
    for (int rank = 0; rank < comm.size(); ++rank) {
      (rank < (comm.size() + 1) / 2 ? low : high).push_back(rank);
      reversed.insert(reversed.begin(), rank);
    }
    const auto in = [&](const std::vector<int>& ranks) {
      return std::find(ranks.begin(), ranks.end(), comm.rank()) != ranks.end();
    };
    const auto lower = comm.subgroup(low, "low half");
    EXPECT_EQ(lower != nullptr, in(low));
    const auto upper = high.empty() ? nullptr : comm.subgroup(high, "high half");
    EXPECT_EQ(upper != nullptr, in(high));
    Communicator& half = in(low) ? *lower : *upper;
    check_ring(half, comm.rank(), in(low) ? low : high);

    const auto backward = comm.subgroup(reversed, "reversed");
    ASSERT_NE(backward, nullptr);
    EXPECT_EQ(backward->rank(), comm.size() - 1 - comm.rank());
    check_ring(*backward, comm.rank(), reversed);

    // Nested: the first member of each half alone, made by both halves at the same time.
    const auto nested = half.subgroup({0}, "nested");
    EXPECT_EQ(nested != nullptr, half.rank() == 0);
    if (nested) check_ring(*nested, comm.rank(), {comm.rank()});
    const auto again = half.subgroup(all_ranks_of(half), "nested whole");
    check_ring(*again, comm.rank(), in(low) ? low : high);
    check_ring(comm, comm.rank(), all_ranks_of(comm));
  });
}

TEST_P(CommunicatorTest, GroupsDoNotSeeEachOthersMessages) {
  expect_success([](Communicator& comm) {
    if (comm.size() == 1) return;
    const auto pair = comm.subgroup({0, 1}, "pair");
    if (!pair) return;
    const int peer = 1 - comm.rank();
    char parent_got = 0, child_got = 0;
    const auto bytes = [](char& c) { return std::as_writable_bytes(std::span(&c, 1)); };
    const char parent_sends = 'p', child_sends = 'c';
    Work child_in = pair->receive(peer, 4, "child", bytes(child_got));
    Work parent_in = comm.receive(peer, 4, "parent", bytes(parent_got));
    Work parent_out = comm.send(peer, 4, "parent", std::as_bytes(std::span(&parent_sends, 1)));
    Work child_out = pair->send(peer, 4, "child", std::as_bytes(std::span(&child_sends, 1)));
    for (Work* work : {&child_in, &parent_in, &parent_out, &child_out}) work->wait();
    EXPECT_EQ(parent_got, 'p');
    EXPECT_EQ(child_got, 'c');
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, CommunicatorTest, testing::ValuesIn(test_transports()),
                         [](const auto& each) { return text(each.param); });

}  // namespace
}  // namespace longspan
