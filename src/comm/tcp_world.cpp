#include "comm/tcp_world.h"

#include <utility>

#include "base/check.h"
#include "comm/engine_communicator.h"
#include "comm/message_engine.h"
#include "comm/tcp_wire.h"

namespace longspan {

TcpWorld::TcpWorld(RendezvousStore& store, const std::string& name, int rank, int size,
                   const TcpWorldOptions& options) {
  LONGSPAN_CHECK(options.stall_timeout_s > 0, "stall timeout ", options.stall_timeout_s, " s");
  LONGSPAN_CHECK(rank >= 0 && rank < size, "rank ", rank, " of ", size);
  engine_ = std::make_unique<MessageEngine>(
      std::make_unique<TcpWire>(store, name, rank, size, options.connect_timeout_s),
      options.stall_timeout_s);
}

TcpWorld::~TcpWorld() = default;

void TcpWorld::set_device_link(std::shared_ptr<DeviceLink> link, const std::string& transport) {
  engine_->set_device_link(std::move(link));
  transport_ = transport;
}

std::unique_ptr<Communicator> TcpWorld::communicator() {
  return world_communicator(*engine_, transport_);
}

}  // namespace longspan
