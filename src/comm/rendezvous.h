// The place where the processes of a job find each other before they can talk.
//
// Why an interface: launchers bring a store of their own (tcp_store.h in device/ is torchrun's);
// tests use a folder.
//
//   store.set("rank 3", address);
//   const std::string address = store.get("rank 3");     // waits until somebody has set it
//
// Contract: a key is set once. get() throws UserError or DistributedError when nobody sets it in
// time. One thread.
#pragma once

#include <string>

namespace longspan {

class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;

  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual std::string get(const std::string& key) = 0;
  // An address of this host that the others can reach it at, in numbers.
  virtual std::string own_address() const = 0;
};

}  // namespace longspan
