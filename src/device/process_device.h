// The device of a rank that has a process of its own, and what moves its memory to other processes.
//
//   one_gpu_for_this_process(launch.local_rank);            // once, before any work
//   device_of_rank(device, comm.rank());                    // that GPU, whatever the rank
//   world.set_device_link(device_link(*comm, device), device_transport(device));
//
// Threads: the rank's; the first before there are others.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "comm/device_link.h"

namespace longspan {

// From now on the process has the GPU of that number on this host, or the only one that it sees;
// device_of_rank() throws UserError that names LOCAL_RANK if there is none.
void one_gpu_for_this_process(int local_rank);

// The GPU of such a process; nothing in others.
std::optional<at::Device> gpu_of_this_process();

// NCCL on GPUs, null on CPU. Called by all ranks of `comm` together.
std::shared_ptr<DeviceLink> device_link(Communicator& comm, at::Device device);

// "nccl", or "tcp" where there is no link.
std::string device_transport(at::Device device);

}  // namespace longspan
