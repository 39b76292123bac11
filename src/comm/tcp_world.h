// Ranks as processes that talk over TCP: one for each GPU, started by torchrun or anything that
// sets its variables. With a device link (nccl_link.h in device/) device memory goes over that, and
// the transport is called by its name.
//
//   TcpWorld world(store, "training", rank, size, {.stall_timeout_s = 300});
//   const auto comm = world.communicator();
//   world.set_device_link(make_link(*comm), "nccl");        // on all ranks, or on none
//   run_rank(*comm, body);
//
// Messages go as communicator.h promises, with progress also while a rank computes. A process that
// dies, fails or stalls ends waiting on all others, with its rank and operation. Sums have their
// order fixed, on the device too.
//
// Threads: as Communicator. Made and destroyed by all processes together; one after the other in
// one process.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/device_link.h"
#include "comm/rendezvous.h"

namespace longspan {

class MessageEngine;

struct TcpWorldOptions {
  double stall_timeout_s = 300;
  double connect_timeout_s = 300;
};

class TcpWorld {
 public:
  // `name` tells the worlds of one job apart in the store.
  TcpWorld(RendezvousStore& store, const std::string& name, int rank, int size,
           const TcpWorldOptions& options = {});
  // Waits until all messages are delivered and all ranks are here, unless the job has failed.
  ~TcpWorld();

  // Communicators made after this call use it.
  void set_device_link(std::shared_ptr<DeviceLink> link, const std::string& transport);

  // The communicator of all ranks; it and its subgroups must not outlive the world.
  std::unique_ptr<Communicator> communicator();

 private:
  std::unique_ptr<MessageEngine> engine_;
  std::string transport_ = "tcp";
};

}  // namespace longspan
