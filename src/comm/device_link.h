// What moves device memory between processes, for the message engine.
//
// Why: matching, sizes, stalls and failures are the engine's business and need no device; bytes on
// a device are moved by a library that knows it. The engine calls this when both sides of a message
// are known, so that a link needs no tags and never waits for a partner that has not come.
//
//   Moment arrived = link.receive(peer, buffer, ready);      // queued; and on the peer:
//   Moment gone = link.send(rank, data, ready);
//
// Contract: the sends to a peer and that peer's receives come in the same order; both directions of
// a pair are apart from each other and from all other pairs. One thread at a time, any thread that
// has called enter_thread(), but finish() beside all others. After abort() whatever is queued ends,
// with any bytes.
#pragma once

#include "comm/communicator.h"
#include "comm/device_memory.h"

namespace longspan {

class DeviceLink {
 public:
  using Moment = DeviceMemory::Moment;

  virtual ~DeviceLink() = default;

  virtual DeviceMemory& memory() = 0;
  virtual void enter_thread() = 0;
  // Start after `after`; the result is the moment at which the buffer is free again, or filled.
  virtual Moment send(int peer, ConstBytes data, const Moment& after) = 0;
  virtual Moment receive(int peer, MutableBytes data, const Moment& after) = 0;
  // The host waits for all that is queued.
  virtual void finish() = 0;
  virtual void abort() noexcept = 0;
};

}  // namespace longspan
