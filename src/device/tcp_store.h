// The rendezvous of a job started by torchrun, or by anything that sets RANK, WORLD_SIZE,
// MASTER_ADDR and MASTER_PORT: libtorch's TCPStore at that address.
//
//   const auto store = tcp_store(launch, 300);
//   TcpWorld world(*store, "training", launch.rank, launch.world_size);
//
// Rank 0 serves it, unless torchrun's own agent does (TORCHELASTIC_USE_AGENT_STORE); rank 0 must
// then live longest. Keys of a restarted job are new ones. Threads: as rendezvous.h.
#pragma once

#include <memory>

#include "comm/launch.h"
#include "comm/rendezvous.h"

namespace longspan {

// UserError that names the variables if nobody is there in time.
std::unique_ptr<RendezvousStore> tcp_store(const LaunchInfo& launch, double timeout_s);

}  // namespace longspan
