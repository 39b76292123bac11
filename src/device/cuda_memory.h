// Memory of GPUs as communicators need it (comm/device_memory.h).
//
//   ThreadGroup group(4, {.device_memory = cuda_memory()});
//
// Moments are CUDA events on the calling thread's stream. Copies run on a second stream of each
// thread, so a rank computes while its messages travel; between GPUs they go peer to peer.
#pragma once

#include <c10/cuda/CUDAStream.h>

#include <memory>

#include "comm/device_memory.h"

namespace longspan {

std::shared_ptr<DeviceMemory> cuda_memory();

// For what moves memory on streams of its own (nccl_link.cpp).
DeviceMemory::Moment moment_of(const c10::cuda::CUDAStream& stream);
void wait_on(const c10::cuda::CUDAStream& stream, const DeviceMemory::Moment& moment);

}  // namespace longspan
