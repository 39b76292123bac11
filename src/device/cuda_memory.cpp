#include "device/cuda_memory.h"

#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <map>

#include "base/check.h"
#include "kernels/cuda/row_pieces.h"

namespace longspan {
namespace {

using c10::cuda::CUDAEvent;
using c10::cuda::CUDAStream;

void check(cudaError_t error, const char* what) {
  LONGSPAN_CHECK(error == cudaSuccess, what, ": ", cudaGetErrorString(error));
}

// The calling thread's second stream on its current device.
CUDAStream copy_stream() {
  thread_local std::map<c10::DeviceIndex, CUDAStream> streams;
  const c10::DeviceIndex device = c10::cuda::getCurrentCUDAStream().device_index();
  const auto found = streams.find(device);
  if (found != streams.end()) return found->second;
  return streams.emplace(device, c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device))
      .first->second;
}

DeviceMemory::Moment moment_of(const CUDAStream& stream) {
  auto event = std::make_shared<CUDAEvent>(cudaEventDisableTiming);
  event->record(stream);
  return event;
}

void wait_on(const CUDAStream& stream, const DeviceMemory::Moment& moment) {
  if (moment) const_cast<CUDAEvent*>(static_cast<const CUDAEvent*>(moment.get()))->block(stream);
}

class CudaMemory final : public DeviceMemory {
 public:
  bool owns(const void* address) const override {
    if (address == nullptr) return false;
    cudaPointerAttributes attributes{};
    check(cudaPointerGetAttributes(&attributes, address), "looking up an address");
    return attributes.type == cudaMemoryTypeDevice;
  }

  Moment moment() override { return moment_of(c10::cuda::getCurrentCUDAStream()); }

  void wait_for(const Moment& moment) override {
    wait_on(c10::cuda::getCurrentCUDAStream(), moment);
  }

  Moment copy(void* target, const void* source, size_t bytes,
              std::span<const Moment> after) override {
    const CUDAStream stream = copy_stream();
    for (const Moment& moment : after) wait_on(stream, moment);
    check(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, stream.stream()),
          "copy between ranks");
    return moment_of(stream);
  }

  std::shared_ptr<const std::byte> duplicate(const std::byte* source, size_t bytes,
                                             const Moment& after, Moment* done) override {
    const CUDAStream stream = copy_stream();
    void* block = nullptr;
    check(cudaMallocAsync(&block, bytes, stream.stream()), "memory for a message kept back");
    *done = copy(block, source, bytes, {&after, 1});
    // Dropped by the thread that queued the last copy from it, on the stream of that copy.
    return {static_cast<const std::byte*>(block), [](const std::byte* address) {
              cudaFreeAsync(const_cast<std::byte*>(address), copy_stream().stream());
            }};
  }

  void sum(std::span<const float* const> parts, int64_t elements, float* sum) override {
    cuda::sum_in_order(parts, elements, sum, c10::cuda::getCurrentCUDAStream().stream());
  }
  void sum(std::span<const double* const> parts, int64_t elements, double* sum) override {
    cuda::sum_in_order(parts, elements, sum, c10::cuda::getCurrentCUDAStream().stream());
  }

  void finish() override {
    c10::cuda::getCurrentCUDAStream().synchronize();
    copy_stream().synchronize();
  }
};

}  // namespace

std::shared_ptr<DeviceMemory> cuda_memory() {
  return std::make_shared<CudaMemory>();
}

}  // namespace longspan
