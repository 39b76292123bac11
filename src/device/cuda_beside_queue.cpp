#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "device/beside_queue.h"
#include "device/cuda_memory.h"

namespace longspan {

struct BesideQueue::Streams {
  c10::cuda::CUDAStream own;
  c10::cuda::CUDAStream beside;
};

BesideQueue::BesideQueue(at::Device device) {
  if (device.is_cpu()) return;
  streams_ = std::make_unique<Streams>(
      Streams{.own = c10::cuda::getCurrentCUDAStream(device.index()),
              .beside = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())});
}

BesideQueue::~BesideQueue() = default;

BesideQueue::Moment BesideQueue::run(const std::function<void()>& work) {
  if (!streams_) {
    work();
    return nullptr;
  }
  wait_on(streams_->beside, moment_of(streams_->own));
  {
    const c10::cuda::CUDAStreamGuard guard(streams_->beside);
    work();
  }
  return moment_of(streams_->beside);
}

void BesideQueue::wait(const Moment& moment) const {
  if (streams_) wait_on(streams_->own, moment);
}

}  // namespace longspan
