#include "device/cuda_memory.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/row_pieces.h"

namespace longspan {
namespace {

using c10::cuda::CUDAEvent;
using c10::cuda::CUDAStream;

void check(cudaError_t error, const char* what) {
  LONGSPAN_CHECK(error == cudaSuccess, what, ": ", cudaGetErrorString(error));
}

// Copies of one stream follow each other with a gap; four streams fill it (pieces of 1 MiB between
// two H200: 324 GB/s on one stream, 352 on two, 366 on four). One large copy gains nothing.
constexpr size_t kSpreadStreams = 4;
constexpr size_t kCopiesToSpread = 16;

// The calling thread's further streams on its current device. The first sees the end of all copies.
const std::vector<CUDAStream>& copy_streams() {
  thread_local std::map<c10::DeviceIndex, std::vector<CUDAStream>> of_device;
  const c10::DeviceIndex device = c10::cuda::getCurrentCUDAStream().device_index();
  std::vector<CUDAStream>& streams = of_device[device];
  while (streams.size() < 1 + kSpreadStreams) {
    streams.push_back(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device));
  }
  return streams;
}

// Neighbours stay apart: CUDA refuses a copy that reaches from one allocation into the next.
std::vector<DeviceCopy> without_empty(std::span<const DeviceCopy> copies) {
  std::vector<DeviceCopy> all;
  std::copy_if(copies.begin(), copies.end(), std::back_inserter(all),
               [](const DeviceCopy& copy) { return copy.bytes > 0; });
  return all;
}

// A call for each copy costs the host more than 1 MiB takes to travel; one for all costs a third.
void copy_on(const CUDAStream& stream, std::span<const DeviceCopy> copies) {
  if (copies.size() == 1) {
    const DeviceCopy& copy = copies[0];
    return check(
        cudaMemcpyAsync(copy.target, copy.source, copy.bytes, cudaMemcpyDefault, stream.stream()),
        "copy between ranks");
  }
  std::vector<void*> targets;
  std::vector<const void*> sources;
  std::vector<size_t> sizes_bytes;
  for (const DeviceCopy& copy : copies) {
    targets.push_back(copy.target);
    sources.push_back(copy.source);
    sizes_bytes.push_back(copy.bytes);
  }
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
  size_t first = 0;  // that the attributes hold from
  check(cudaMemcpyBatchAsync(targets.data(), sources.data(), sizes_bytes.data(), copies.size(),
                             &attributes, &first, 1, stream.stream()),
        "copies between ranks");
}

// On the streams behind the first, which only waits for them.
void spread(std::span<const DeviceCopy> copies, std::span<const DeviceMemory::Moment> after) {
  const std::vector<CUDAStream>& streams = copy_streams();
  for (size_t part = 0; part < kSpreadStreams; ++part) {
    const CUDAStream& stream = streams[part + 1];
    for (const DeviceMemory::Moment& moment : after) wait_on(stream, moment);
    const size_t first = copies.size() * part / kSpreadStreams;
    const size_t last = copies.size() * (part + 1) / kSpreadStreams;
    copy_on(stream, copies.subspan(first, last - first));
    wait_on(streams[0], moment_of(stream));
  }
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

  Moment copy(std::span<const DeviceCopy> copies, std::span<const Moment> after) override {
    const CUDAStream& stream = copy_streams()[0];
    const std::vector<DeviceCopy> all = without_empty(copies);
    if (all.size() >= kCopiesToSpread) {
      spread(all, after);
      return moment_of(stream);
    }
    for (const Moment& moment : after) wait_on(stream, moment);
    if (!all.empty()) copy_on(stream, all);
    return moment_of(stream);
  }

  std::shared_ptr<const std::byte> duplicate(const std::byte* source, size_t bytes,
                                             const Moment& after, Moment* done) override {
    const CUDAStream& stream = copy_streams()[0];
    void* block = nullptr;
    check(cudaMallocAsync(&block, bytes, stream.stream()), "memory for a message kept back");
    const DeviceCopy whole{block, source, bytes};
    *done = copy({&whole, 1}, {&after, 1});
    // Dropped by the thread that queued the last copy from it, on the stream of that copy.
    return {static_cast<const std::byte*>(block), [](const std::byte* address) {
              cudaFreeAsync(const_cast<std::byte*>(address), copy_streams()[0].stream());
            }};
  }

  std::shared_ptr<std::byte> room(size_t bytes) override {
    void* block = c10::cuda::CUDACachingAllocator::raw_alloc(bytes);
    return {static_cast<std::byte*>(block),
            [](std::byte* address) { c10::cuda::CUDACachingAllocator::raw_delete(address); }};
  }

  void sum(std::span<const float* const> parts, int64_t elements, float* sum) override {
    cuda::sum_in_order(parts, elements, sum, c10::cuda::getCurrentCUDAStream().stream());
  }
  void sum(std::span<const double* const> parts, int64_t elements, double* sum) override {
    cuda::sum_in_order(parts, elements, sum, c10::cuda::getCurrentCUDAStream().stream());
  }

  void finish() override {
    c10::cuda::getCurrentCUDAStream().synchronize();
    copy_streams()[0].synchronize();
  }
};

}  // namespace

DeviceMemory::Moment moment_of(const CUDAStream& stream) {
  auto event = std::make_shared<CUDAEvent>(cudaEventDisableTiming);
  event->record(stream);
  return event;
}

void wait_on(const CUDAStream& stream, const DeviceMemory::Moment& moment) {
  if (moment) const_cast<CUDAEvent*>(static_cast<const CUDAEvent*>(moment.get()))->block(stream);
}

std::shared_ptr<DeviceMemory> cuda_memory() {
  return std::make_shared<CudaMemory>();
}

}  // namespace longspan
