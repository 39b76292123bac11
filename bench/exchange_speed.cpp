// Rate of messages between two ranks on two GPUs, as attention and weights use them: thread ranks
// of one process, copies on the copy engines; or, under torchrun, two processes over NCCL.
//
//   build/cuda/longspan_exchange_speed          # bench/compare_exchange.py adds NCCL and torch's
//
// Prints JSON: for each size of a piece, and for one way and both ways at once, the median rate in
// GB/s of 256 MiB from each sender, on the clock of the host, posting included, until the slowest
// rank's device is done. Pieces go to places in random order, so that no two of them are one copy.
// The bytes are compared after the last repeat.
#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "comm/launch.h"
#include "comm/run_ranks.h"
#include "comm/tcp_world.h"
#include "device/device.h"
#include "device/process_device.h"
#include "device/tcp_store.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMessageBytes = 256LL << 20;

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<size_t>(tensor.nbytes())};
}

// Piece k of what is sent goes to place order[k].
struct Pieces {
  int64_t size_bytes = 0;
  std::vector<int64_t> order;
};

Pieces cut(int64_t piece_bytes) {
  Pieces pieces{.size_bytes = piece_bytes};
  for (int64_t k = 0; k < kMessageBytes / piece_bytes; ++k) pieces.order.push_back(k);
  std::shuffle(pieces.order.begin(), pieces.order.end(), std::mt19937(17));
  return pieces;
}

// Seconds of one repeat on this rank. Receives are posted before the clock starts, as the runtime
// posts them before it packs what it sends: a sender never keeps a copy back.
double exchange(Communicator& comm, const at::Tensor& outgoing, const at::Tensor& incoming,
                const Pieces& pieces, bool both_ways, at::Device device) {
  const int peer = 1 - comm.rank();
  const auto piece = [&](const at::Tensor& tensor, int64_t place) {
    return bytes_of(tensor).subspan(static_cast<size_t>(place * pieces.size_bytes),
                                    static_cast<size_t>(pieces.size_bytes));
  };
  std::vector<IncomingMessage> receives;
  std::vector<OutgoingMessage> sends;
  for (size_t k = 0; k < pieces.order.size(); ++k) {
    const auto tag = static_cast<int64_t>(k);
    if (both_ways || comm.rank() == 1) {
      receives.push_back({peer, tag, piece(incoming, pieces.order[k])});
    }
    if (both_ways || comm.rank() == 0) sends.push_back({peer, tag, piece(outgoing, tag)});
  }
  Work received = comm.exchange(receives, {}, "pieces");
  finish_work(device);
  comm.barrier("before a repeat");
  const auto start = Clock::now();
  Work sent = comm.exchange({}, sends, "pieces");
  received.wait();
  sent.wait();
  finish_work(device);
  std::vector<double> seconds{std::chrono::duration<double>(Clock::now() - start).count()};
  comm.all_reduce_max(seconds, "slowest rank");
  return seconds[0];
}

at::Tensor placed(const at::Tensor& sent, const Pieces& pieces) {
  const at::Tensor result = at::empty_like(sent);
  for (size_t k = 0; k < pieces.order.size(); ++k) {
    const auto from = static_cast<int64_t>(k) * pieces.size_bytes;
    result.narrow(0, pieces.order[k] * pieces.size_bytes, pieces.size_bytes)
        .copy_(sent.narrow(0, from, pieces.size_bytes));
  }
  return result;
}

// On rank 0 of the two; null on the other.
nlohmann::json measure(Communicator& comm, at::Device device, int64_t piece_bytes, bool both_ways,
                       int repeats) {
  const Pieces pieces = cut(piece_bytes);
  const at::Tensor outgoing =
      at::randint(256, {kMessageBytes}, at::TensorOptions(at::kByte).device(device));
  const at::Tensor incoming = at::zeros_like(outgoing);
  std::vector<double> seconds;
  for (int repeat = 0; repeat <= repeats; ++repeat) {
    const double s = exchange(comm, outgoing, incoming, pieces, both_ways, device);
    if (repeat > 0) seconds.push_back(s);
  }
  const at::Tensor sent = outgoing.cpu();
  const at::Tensor expected = at::empty_like(sent);
  const IncomingMessage other{1 - comm.rank(), -2, bytes_of(expected)};
  const OutgoingMessage own{1 - comm.rank(), -2, bytes_of(sent)};
  comm.exchange({&other, 1}, {&own, 1}, "check").wait();
  const bool receives = both_ways || comm.rank() == 1;
  if (receives && !incoming.cpu().equal(placed(expected, pieces))) {
    throw InternalError("other bytes arrived");
  }
  if (comm.rank() != 0) return {};
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return {{"transport", comm.transport()},
          {"piece_bytes", piece_bytes},
          {"both_ways", both_ways},
          {"gb_per_s",
           1e-9 * static_cast<double>(kMessageBytes) / seconds[static_cast<size_t>(repeats / 2)]}};
}

// Ends with the results on rank 0's process.
void measure_all(Communicator& comm, at::Device device, int repeats) {
  if (comm.size() != 2) throw UserError("this measures two ranks");
  nlohmann::json results = nlohmann::json::array();
  for (const bool both_ways : {false, true}) {
    for (const int64_t piece_bytes : {kMessageBytes, int64_t{1} << 20, int64_t{64} << 10}) {
      results.push_back(measure(comm, device, piece_bytes, both_ways, repeats));
    }
  }
  if (comm.rank() == 0) std::cout << results.dump() << "\n";
}

void measure_processes(const LaunchInfo& launch, int repeats) {
  one_gpu_for_this_process(launch.local_rank);
  const at::Device device = device_of_rank(device_from_name("cuda"), launch.rank);
  const DeviceThread on(device);
  const auto store = tcp_store(launch, 60);
  TcpWorld world(*store, "exchange", launch.rank, launch.world_size, {});
  run_rank(*world.communicator(), [&](Communicator& comm) {
    world.set_device_link(device_link(comm, device), device_transport(device));
    measure_all(*world.communicator(), device, repeats);
  });
}

void measure_threads(int repeats) {
  if (visible_gpus() < 2) throw UserError("two GPUs are needed, and this machine shows fewer");
  const at::Device gpu = device_from_name("cuda");
  run_ranks(2, {.device_memory = device_memory(gpu)}, [&](Communicator& comm) {
    const at::Device device = device_of_rank(gpu, comm.rank());
    const DeviceThread on(device);
    measure_all(comm, device, repeats);
  });
}

int run(int argc, char** argv) {
  int repeats = 20;
  CLI::App app("Rate of messages between two GPUs");
  app.add_option("--repeats", repeats);
  CLI11_PARSE(app, argc, argv);
  const LaunchInfo launch = read_launch(process_environment());
  if (launch.several_processes()) {
    measure_processes(launch, repeats);
  } else {
    measure_threads(repeats);
  }
  return 0;
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) {
  try {
    return longspan::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "longspan_exchange_speed: " << error.what() << "\n";
    return 2;
  }
}
