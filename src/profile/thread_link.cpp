#include "profile/thread_link.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "comm/run_ranks.h"
#include "device/device.h"

namespace longspan {
namespace {

constexpr int kManyMessages = 33;

// Bytes of a large message: milliseconds on CPU, tenths of one between GPUs.
int64_t large_bytes(at::Device device) {
  return int64_t{device.is_cpu() ? 16 : 64} << 20;
}

at::Tensor bytes_on(at::Device device, int64_t count) {
  return at::full({count}, 1, at::TensorOptions(at::kByte).device(device));
}

std::span<std::byte> span_of(const at::Tensor& bytes) {
  return {static_cast<std::byte*>(bytes.data_ptr()), static_cast<size_t>(bytes.numel())};
}

// One exchange between two ranks: messages of one size, both ways.
class Exchange {
 public:
  Exchange(Communicator& comm, at::Device device, int messages, int64_t message_bytes)
      : comm_(comm),
        device_(device),
        messages_(messages),
        sent_(bytes_on(device, message_bytes)),
        received_(bytes_on(device, message_bytes * messages)) {
    finish_work(device);
  }

  void run() {
    const int peer = 1 - comm_.rank();
    const std::span<std::byte> sent = span_of(sent_);
    const std::span<std::byte> received = span_of(received_);
    std::vector<Work> works;
    for (int message = 0; message < messages_; ++message) {
      const auto begin = static_cast<size_t>(message) * sent.size();
      works.push_back(
          comm_.receive(peer, message, "profile", received.subspan(begin, sent.size())));
    }
    for (int message = 0; message < messages_; ++message) {
      works.push_back(comm_.send(peer, message, "profile", sent));
    }
    for (Work& work : works) work.wait();
    finish_work(device_);
  }

 private:
  Communicator& comm_;
  at::Device device_;
  int messages_;
  at::Tensor sent_;
  at::Tensor received_;
};

}  // namespace

MeasuredLink measure_thread_link(const TimingOptions& options) {
  RepeatedTime one;
  RepeatedTime many;
  RepeatedTime half;
  RepeatedTime large;
  const int64_t whole_bytes = large_bytes(options.device);
  run_ranks(2, {.device_memory = device_memory(options.device)}, [&](Communicator& comm) {
    const at::Device device = device_of_rank(options.device, comm.rank());
    const DeviceThread on(device);
    const auto time_rounds = [&](int messages, int64_t message_bytes, int runs) {
      Exchange exchange(comm, device, messages, message_bytes);
      return time_repeatedly({.repeats = options.repeats, .runs = std::max(1, runs)},
                             [&] { exchange.run(); });
    };
    const RepeatedTime own_one = time_rounds(1, 1, options.runs);
    const RepeatedTime own_many = time_rounds(kManyMessages, 1, options.runs / 10);
    const RepeatedTime own_half = time_rounds(1, whole_bytes / 2, options.runs / 100);
    const RepeatedTime own_large = time_rounds(1, whole_bytes, options.runs / 100);
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
  const double bytes = static_cast<double>(whole_bytes) / 2;
  const double copy_s = large.median_s - half.median_s;
  link.figures.bytes_per_s = copy_s > large.median_s / 4
                                 ? bytes / copy_s
                                 : static_cast<double>(whole_bytes) / large.median_s;
  link.spread = std::max({one.spread, many.spread, half.spread, large.spread});
  return link;
}

}  // namespace longspan
