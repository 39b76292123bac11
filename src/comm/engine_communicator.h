// The communicator on top of a message engine, whatever its wire. Private to the transports.
//
//   MessageEngine engine(std::move(wire), stall_timeout_s);
//   const auto comm = world_communicator(engine, "mpi");       // of all ranks
//
// It and its subgroups must not outlive the engine. Threads: as Communicator.
#pragma once

#include <memory>
#include <string>

#include "comm/message_engine.h"

namespace longspan {

std::unique_ptr<Communicator> world_communicator(MessageEngine& engine, std::string transport);

}  // namespace longspan
