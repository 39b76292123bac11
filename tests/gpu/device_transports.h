// Runs a test body on ranks that have a device, for communicator_gpu_test.cpp.
//
//   on_ranks([](Communicator& comm) { ... });
//
// Two programs are built: with thread_device_transport.cpp all ranks are threads here, four of them
// on the GPUs in turn; with nccl_device_transport.cpp each GPU has a process, and each sees only
// its own failures. Every call runs on a fresh group. What a rank of this process throws leaves
// on_ranks().
#pragma once

#include <functional>

#include "comm/communicator.h"

namespace longspan {

void on_ranks(const std::function<void(Communicator&)>& body);

}  // namespace longspan
