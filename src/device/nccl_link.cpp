#include "device/nccl_link.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/cuda_memory.h"

namespace longspan {
namespace {

// Of a message: enough for the rate of the link, few enough to leave the GPU to kernels.
constexpr int kMostBlocks = 16;

void check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  throw DistributedError(
      text("NCCL, ", what, ": ", ncclGetErrorString(result), ", ", ncclGetLastError(nullptr)));
}

void check(cudaError_t error, const char* what) {
  LONGSPAN_CHECK(error == cudaSuccess, what, ": ", cudaGetErrorString(error));
}

// One direction to or from a peer.
struct Direction {
  ncclComm_t comm = nullptr;
  std::optional<c10::cuda::CUDAStream> stream;  // of this direction alone
  int peer_place = 0;                           // of the two: the sender is 0
};

class NcclLink final : public DeviceLink {
 public:
  NcclLink(Communicator& comm, at::Device device);
  ~NcclLink() override;

  DeviceMemory& memory() override { return *memory_; }
  void enter_thread() override { c10::cuda::set_device(device_.index()); }
  Moment send(int peer, ConstBytes data, const Moment& after) override {
    const c10::cuda::CUDAGuard on(device_.index());
    const Direction& direction = out_[static_cast<size_t>(peer)];
    start(direction, after);
    check(ncclSend(data.data(), data.size(), ncclUint8, direction.peer_place, direction.comm,
                   direction.stream->stream()),
          "send");
    return moment_of(*direction.stream);
  }
  Moment receive(int peer, MutableBytes data, const Moment& after) override {
    const c10::cuda::CUDAGuard on(device_.index());
    const Direction& direction = in_[static_cast<size_t>(peer)];
    start(direction, after);
    check(ncclRecv(data.data(), data.size(), ncclUint8, direction.peer_place, direction.comm,
                   direction.stream->stream()),
          "receive");
    return moment_of(*direction.stream);
  }
  void finish() override;
  void abort() noexcept override;

 private:
  void start(const Direction& direction, const Moment& after) const {
    LONGSPAN_CHECK(direction.comm != nullptr, "NCCL after its end");
    wait_on(*direction.stream, after);
  }
  void connect(Communicator& comm);
  void warm_up(int rank);

  const at::Device device_;
  const std::shared_ptr<DeviceMemory> memory_ = cuda_memory();
  std::vector<Direction> out_;  // by peer
  std::vector<Direction> in_;
};

// What tells one GPU from all others, of all hosts.
std::array<char, 16> gpu_identity(at::Device device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device.index()), "looking at the GPU");
  std::array<char, 16> identity{};
  std::memcpy(identity.data(), properties.uuid.bytes, identity.size());
  return identity;
}

void require_own_gpu(Communicator& comm, at::Device device) {
  const auto own = gpu_identity(device);
  std::vector<std::array<char, 16>> all(static_cast<size_t>(comm.size()));
  comm.all_gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)),
                  "which GPU each rank has");
  for (int first = 0; first < comm.size(); ++first) {
    for (int second = first + 1; second < comm.size(); ++second) {
      if (all[static_cast<size_t>(first)] != all[static_cast<size_t>(second)]) continue;
      throw UserError(text("ranks ", first, " and ", second,
                           " have the same GPU: LOCAL_RANK must count the processes of a host from "
                           "0, with as many GPUs there (CUDA_VISIBLE_DEVICES); several ranks on "
                           "one GPU are threads of one process (--ranks)"));
    }
  }
}

NcclLink::NcclLink(Communicator& comm, at::Device device)
    : device_(device),
      out_(static_cast<size_t>(comm.size())),
      in_(static_cast<size_t>(comm.size())) {
  setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/1);
  const c10::cuda::CUDAGuard on(device.index());
  require_own_gpu(comm, device);
  connect(comm);
  warm_up(comm.rank());
  comm.barrier("NCCL is there");
}

// The sender of a direction makes its number.
void NcclLink::connect(Communicator& comm) {
  const auto ranks = static_cast<size_t>(comm.size());
  std::vector<ncclUniqueId> out(ranks);
  std::vector<ncclUniqueId> in(ranks);
  std::vector<ConstBytes> send(ranks);
  std::vector<MutableBytes> receive(ranks);
  for (size_t peer = 0; peer < ranks; ++peer) {
    if (peer == static_cast<size_t>(comm.rank())) continue;
    check(ncclGetUniqueId(&out[peer]), "making a number");
    send[peer] = std::as_bytes(std::span(&out[peer], 1));
    receive[peer] = std::as_writable_bytes(std::span(&in[peer], 1));
  }
  comm.all_to_all(send, receive, 0, "numbers of NCCL").wait();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.maxCTAs = kMostBlocks;
  comm.activity("making NCCL communicators");
  check(ncclGroupStart(), "start of a group");
  for (size_t peer = 0; peer < ranks; ++peer) {
    if (peer == static_cast<size_t>(comm.rank())) continue;
    out_[peer].peer_place = 1;
    check(ncclCommInitRankConfig(&out_[peer].comm, 2, out[peer], 0, &config), "meeting a peer");
    check(ncclCommInitRankConfig(&in_[peer].comm, 2, in[peer], 1, &config), "meeting a peer");
  }
  check(ncclGroupEnd(), "meeting all peers");
  int least = 0;
  int greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities of streams");
  for (std::vector<Direction>* directions : {&out_, &in_}) {
    for (Direction& direction : *directions) {
      if (direction.comm == nullptr) continue;
      cudaStream_t stream = nullptr;
      check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
            "making a stream");
      direction.stream = c10::cuda::getStreamFromExternal(stream, device_.index());
    }
  }
}

// The first message of a direction makes its channels, for which both sides must be there at once:
// later the engine would have to wait for that under its lock.
void NcclLink::warm_up(int rank) {
  const size_t bytes = 16;
  const std::shared_ptr<std::byte> block = memory_->room(2 * bytes * out_.size());
  check(ncclGroupStart(), "start of a group");
  for (size_t peer = 0; peer < out_.size(); ++peer) {
    if (peer == static_cast<size_t>(rank)) continue;
    std::byte* own = block.get() + 2 * bytes * peer;
    const Direction& out = out_[peer];
    const Direction& in = in_[peer];
    check(ncclSend(own, bytes, ncclUint8, out.peer_place, out.comm, out.stream->stream()),
          "first send");
    check(ncclRecv(own + bytes, bytes, ncclUint8, in.peer_place, in.comm, in.stream->stream()),
          "first receive");
  }
  check(ncclGroupEnd(), "first messages");
  finish();
}

void NcclLink::finish() {
  for (const std::vector<Direction>* directions : {&out_, &in_}) {
    for (const Direction& direction : *directions) {
      if (direction.stream) direction.stream->synchronize();
    }
  }
}

void NcclLink::abort() noexcept {
  for (std::vector<Direction>* directions : {&out_, &in_}) {
    for (Direction& direction : *directions) {
      if (direction.comm != nullptr) ncclCommAbort(std::exchange(direction.comm, nullptr));
    }
  }
}

// What is queued was asked for by all ranks, so it ends. Nobody is left to hear of an error.
NcclLink::~NcclLink() {
  const c10::cuda::CUDAGuard on(device_.index());
  for (std::vector<Direction>* directions : {&out_, &in_}) {
    for (Direction& direction : *directions) {
      if (direction.stream) cudaStreamSynchronize(direction.stream->stream());
      if (direction.comm != nullptr) ncclCommAbort(direction.comm);
      if (direction.stream) cudaStreamDestroy(direction.stream->stream());
    }
  }
}

}  // namespace

std::shared_ptr<DeviceLink> nccl_link(Communicator& comm, at::Device device) {
  return std::make_shared<NcclLink>(comm, device);
}

}  // namespace longspan
