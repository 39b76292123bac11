#include "device/side_queues.h"

#include <c10/cuda/CUDAEvent.h>

#include <map>

namespace longspan {
namespace {

constexpr size_t kQueues = 3;

// The same ones every time: each keeps memory of its own.
const std::vector<c10::cuda::CUDAStream>& queues_of_thread(c10::DeviceIndex gpu) {
  thread_local std::map<c10::DeviceIndex, std::vector<c10::cuda::CUDAStream>> of_gpu;
  std::vector<c10::cuda::CUDAStream>& queues = of_gpu[gpu];
  while (queues.size() < kQueues) {
    queues.push_back(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, gpu));
  }
  return queues;
}

}  // namespace

SideQueues::SideQueues(at::Device device)
    : own_(c10::cuda::getCurrentCUDAStream(device.index())),
      queues_(queues_of_thread(own_.device_index())) {
  c10::cuda::CUDAEvent begun(cudaEventDisableTiming);
  begun.record(own_);
  for (const c10::cuda::CUDAStream& queue : queues_) begun.block(queue);
}

void SideQueues::join() {
  for (const c10::cuda::CUDAStream& queue : queues_) {
    c10::cuda::CUDAEvent done(cudaEventDisableTiming);
    done.record(queue);
    done.block(own_);
  }
}

}  // namespace longspan
