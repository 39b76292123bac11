// The memory that thread ranks share: mailboxes, the board of what each rank does, and the one
// failure that ends all waiting. Private to the thread transport; thread_communicator.h is the
// public header.
//
// Why one world: groups overlap, and a failure in one must end waiting in all of them. One mutex
// guards everything here; it is held for look-ups only, never while bytes are copied. Each rank
// sleeps on its own condition variable, so a message wakes the one rank it concerns.
//
// A message has one copy in the common order: whoever posts second copies from the sender's buffer
// to the receiver's, all messages of a round together, and wakes each rank once. Only a send that
// is waited for before its receive was posted leaves a copy behind.
//
// Device memory goes the same way, but what is passed on is a place in a queue: a transfer is done
// when its copy is queued, and wait() makes the waiting rank's queue wait for the copy.
//
//   auto transfers = world.post(rank, std::move(round));   world.wait(transfers);
//
// Threads: every function may be called by any rank's thread, with that rank's own number.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/device_memory.h"
#include "comm/message_key.h"
#include "comm/stall_report.h"

namespace longspan {

// One send or one receive. Everything but the bytes is guarded by the world's mutex.
struct ThreadTransfer {
  enum class Stage { kPosted, kCopying, kDone };

  bool is_send = false;
  int owner = 0;        // the rank that posted it
  int destination = 0;  // the rank whose mailbox holds it
  MessageKey key;
  std::string op;
  const std::byte* source_bytes = nullptr;  // of a send
  std::byte* target_bytes = nullptr;        // of a receive
  size_t size_bytes = 0;
  Stage stage = Stage::kPosted;
  std::vector<std::byte> kept;  // the copy left behind by a sender that went on
  // On a device: when the buffer may be read or written, when the copy is done, and what keeps a
  // copy left behind alive.
  bool on_device = false;
  DeviceMemory::Moment ready;
  DeviceMemory::Moment copied;
  std::shared_ptr<const std::byte> kept_on_device;
  std::string problem;  // sizes differ

  int peer() const { return is_send ? destination : key.source; }
};

class ThreadWorld {
 public:
  using Lock = std::unique_lock<std::mutex>;
  using TransferPointer = std::shared_ptr<ThreadTransfer>;
  using Transfers = std::vector<TransferPointer>;

  ThreadWorld(int size, double stall_timeout_s, std::shared_ptr<DeviceMemory> device_memory);

  int size() const { return static_cast<int>(ranks_.size()); }
  // Null: there is host memory only.
  DeviceMemory* device_memory() const { return device_memory_.get(); }
  bool on_device(const void* address) const {
    return device_memory_ && device_memory_->owns(address);
  }

  static TransferPointer make_send(int destination, const MessageKey& key, std::string_view op,
                                   ConstBytes data);
  static TransferPointer make_receive(int rank, const MessageKey& key, std::string_view op,
                                      MutableBytes data);
  // A round of one rank. Messages that find their counterpart are copied.
  void post(int rank, const Transfers& round);
  bool done(const Transfers& round);
  // In the order of the list. Returns or throws with all buffers at rest and no trace of the round
  // in the mailboxes.
  void wait(const Transfers& round);
  void abandon(const Transfers& round);

  void set_activity(int rank, std::string_view op);
  void set_finished(int rank);
  std::vector<RankStatus> statuses();
  void fail(std::string_view reason);

  // For operations of whole groups (thread_communicator.cpp), all under lock().
  Lock lock() { return Lock(mutex_); }
  void throw_if_failed(const Lock& lock, int rank, std::string_view op) const;
  void fail(const Lock& lock, std::string_view reason);
  void wake(const Lock& lock, int rank);
  // Sleeps until ready(); throws DistributedError, still under the lock, when the world has failed
  // or this rank has slept longer than the stall timeout. `awaits` lists the ranks waited for.
  void sleep_until(Lock& lock, int rank, std::string_view op,
                   const std::function<std::vector<int>()>& awaits,
                   const std::function<bool()>& ready);
  // The same without an end: only for work that other ranks are certain to finish.
  void sleep_until_certain(Lock& lock, int rank, const std::function<bool()>& ready);

  int64_t new_group(const Lock& lock);

 private:
  using Clock = std::chrono::steady_clock;
  struct Queues {
    Transfers sends;
    Transfers receives;
  };
  struct Pair {
    TransferPointer send;
    TransferPointer receive;
  };
  struct Rank {
    std::condition_variable wakeup;
    RankStatus status;
    Clock::time_point since = Clock::now();
    std::function<std::vector<int>()> awaits;  // set while waiting
    std::map<MessageKey, Queues> mailbox;
  };

  Rank& at(int rank) { return *ranks_[static_cast<size_t>(rank)]; }
  void set_status(int rank, RankStatus::Kind kind, std::string_view text);
  std::vector<RankStatus> statuses(const Lock& lock) const;
  void set_ready(const Transfers& round);
  void queue_or_match(const Lock& lock, const TransferPointer& transfer, std::vector<Pair>& pairs);
  void match(const Lock& lock, const Pair& pair, std::vector<Pair>& pairs);
  void copy_and_finish(Lock& lock, std::vector<Pair>& pairs);
  void copy(std::span<const Pair> pairs);
  void copy_on_device(std::span<const Pair> pairs);
  void wait(Lock& lock, ThreadTransfer& transfer);
  void withdraw(const Lock& lock, ThreadTransfer& transfer);
  bool leave_copy_behind(Lock& lock, ThreadTransfer& send);
  void spin(Lock& lock, const std::function<bool()>& ready) const;

  const std::chrono::duration<double> stall_timeout_;
  const std::shared_ptr<DeviceMemory> device_memory_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  bool failed_ = false;
  std::string failure_;
  int64_t groups_ = 0;
};

}  // namespace longspan
