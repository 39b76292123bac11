// Device memory between processes over NCCL: one process for each GPU.
//
//   TcpWorld world(store, "training", rank, size, ...);
//   const auto comm = world.communicator();
//   world.set_device_link(nccl_link(*comm, device), "nccl");
//
// Why raw NCCL and not libtorch's process group: the engine needs a queue for each direction
// between two processes, moments instead of host waits, and an abort from any thread; and of NCCL
// nothing but send and receive. Each ordered pair of processes has an NCCL communicator of two
// ranks and a stream, so a message waits for nothing but its own buffers: with one communicator for
// all, the order of messages between different pairs would have to agree on all ranks. Sums stay
// with message_communicator.h, in their fixed order.
//
// NVLink multicast is switched off (NCCL_NVLS_ENABLE=0): pairs have no use for it.
//
// Threads: made by the rank's thread; after that as device_link.h says.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "comm/communicator.h"
#include "comm/device_link.h"

namespace longspan {

// Called by all ranks of `comm` together, on host memory alone. UserError if two ranks have the
// same GPU.
std::shared_ptr<DeviceLink> nccl_link(Communicator& comm, at::Device device);

}  // namespace longspan
