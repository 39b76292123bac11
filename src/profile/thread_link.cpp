#include "profile/thread_link.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "comm/run_ranks.h"

namespace longspan {
namespace {

constexpr int kManyMessages = 33;
constexpr size_t kLargeBytes = size_t{16} << 20;
constexpr size_t kHalfBytes = kLargeBytes / 2;

// One exchange between two ranks: messages of one size, both ways.
class Exchange {
 public:
  Exchange(Communicator& comm, int messages, size_t message_bytes)
      : comm_(comm),
        messages_(messages),
        sent_(message_bytes, std::byte{1}),
        received_(message_bytes * static_cast<size_t>(messages)) {}

  void run() {
    const int peer = 1 - comm_.rank();
    std::vector<Work> works;
    for (int message = 0; message < messages_; ++message) {
      const auto begin = static_cast<size_t>(message) * sent_.size();
      works.push_back(comm_.receive(peer, message, "profile", {&received_[begin], sent_.size()}));
    }
    for (int message = 0; message < messages_; ++message) {
      works.push_back(comm_.send(peer, message, "profile", sent_));
    }
    for (Work& work : works) work.wait();
  }

 private:
  Communicator& comm_;
  int messages_;
  std::vector<std::byte> sent_;
  std::vector<std::byte> received_;
};

}  // namespace

MeasuredLink measure_thread_link(const TimingOptions& options) {
  RepeatedTime one;
  RepeatedTime many;
  RepeatedTime half;
  RepeatedTime large;
  run_ranks(2, {}, [&](Communicator& comm) {
    const auto time_rounds = [&](int messages, size_t message_bytes, int runs) {
      Exchange exchange(comm, messages, message_bytes);
      return time_repeatedly({.repeats = options.repeats, .runs = std::max(1, runs)},
                             [&] { exchange.run(); });
    };
    const RepeatedTime own_one = time_rounds(1, 1, options.runs);
    const RepeatedTime own_many = time_rounds(kManyMessages, 1, options.runs / 10);
    const RepeatedTime own_half = time_rounds(1, kHalfBytes, options.runs / 100);
    const RepeatedTime own_large = time_rounds(1, kLargeBytes, options.runs / 100);
    if (comm.rank() != 0) return;
    one = own_one;
    many = own_many;
    half = own_half;
    large = own_large;
  });
  MeasuredLink link;
  // Noise must not make a difference of two times negative.
  link.figures.message_overhead_s =
      std::max(0.0, (many.median_s - one.median_s) / (kManyMessages - 1));
  link.figures.latency_s = std::max(0.0, one.median_s - link.figures.message_overhead_s);
  const double bytes = static_cast<double>(kLargeBytes - kHalfBytes);
  const double copy_s = large.median_s - half.median_s;
  link.figures.bytes_per_s = copy_s > large.median_s / 4
                                 ? bytes / copy_s
                                 : static_cast<double>(kLargeBytes) / large.median_s;
  link.spread = std::max({one.spread, many.spread, half.spread, large.spread});
  return link;
}

}  // namespace longspan
