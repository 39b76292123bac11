// Memory of GPUs as communicators need it (comm/device_memory.h).
//
//   ThreadGroup group(4, {.device_memory = cuda_memory()});
//
// Moments are CUDA events on the calling thread's stream. Copies run on a second stream of each
// thread, so a rank computes while its messages travel; between GPUs they go peer to peer.
#pragma once

#include <memory>

#include "comm/device_memory.h"

namespace longspan {

std::shared_ptr<DeviceMemory> cuda_memory();

}  // namespace longspan
