// One rank's end of a transport between processes: matches messages, watches for stalls, and keeps
// everything moving. Private to the transports; mpi_communicator.h and tcp_world.h are the public
// headers.
//
// How a message travels: a short one whole in an envelope. A long one is announced; when its
// receive is posted the receiver answers "clear", and only then the bytes start, from the sender's
// buffer into the receiver's. So a send that is waited for before anybody asks can still be turned
// into a kept copy, and sizes are compared before a byte is written. Device memory is announced
// always; "clear" lets both sides give their buffers to the device link, and wait() then makes the
// rank's queue wait, not the host.
//
// A helper thread polls when the rank does not: a rank that computes still passes on what it has
// posted, and still answers when another asks what it is doing. A rank that does not answer is
// reported as stopped or gone.
//
// Threads: every function may be called by any thread; one lock guards all, and wire and link are
// called under it alone. Waiting polls with growing sleeps, which some wires end early.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/device_link.h"
#include "comm/message_key.h"
#include "comm/stall_report.h"
#include "comm/wire.h"

namespace longspan {

// One send or one receive, guarded by the engine's lock.
struct MessageTransfer {
  enum class Stage { kPosted, kMoving, kDone };

  bool is_send = false;
  int peer = 0;
  int64_t number = 0;  // of a long send
  MessageKey key;      // of a receive
  std::string op;
  ConstBytes source;
  MutableBytes target;
  Stage stage = Stage::kPosted;
  std::shared_ptr<Bulk> bulk;   // while moving
  int data_tag = 0;             // of a receive, while moving
  std::vector<std::byte> kept;  // the copy of a send whose owner went on
  std::string problem;          // why it does not fit its counterpart
  // On a device: when the buffer may be used, when it has been, and the kept copy.
  bool on_device = false;
  DeviceMemory::Moment ready;
  DeviceMemory::Moment moved;
  std::shared_ptr<const std::byte> kept_on_device;
};

class MessageEngine {
 public:
  using TransferPointer = std::shared_ptr<MessageTransfer>;

  MessageEngine(std::unique_ptr<Wire> wire, double stall_timeout_s);
  // Unless the job has failed, waits until all messages are delivered and all ranks are here.
  ~MessageEngine();

  // Before the first message of device memory, on all ranks; null: there is none.
  void set_device_link(std::shared_ptr<DeviceLink> link);
  DeviceMemory* device_memory() const { return link_ ? &link_->memory() : nullptr; }

  int rank() const { return wire_->rank(); }
  int size() const { return wire_->size(); }

  TransferPointer post_send(int destination, int64_t channel, int64_t tag, std::string_view op,
                            ConstBytes data);
  TransferPointer post_receive(const MessageKey& key, std::string_view op, MutableBytes data);
  bool done(const MessageTransfer& transfer);
  void wait(MessageTransfer& transfer);
  void abandon(MessageTransfer& transfer);

  void set_activity(std::string_view op);
  void fail(std::string_view reason);

  // The least number that this rank has not used for a group; the members of a new group agree on
  // the greatest of theirs.
  int64_t next_group() const { return next_group_; }
  void set_next_group(int64_t number) { next_group_ = number; }

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Clock = std::chrono::steady_clock;
  // What a wait is for; all are called under the lock.
  struct Goal {
    std::string_view op;
    std::function<std::vector<int>()> awaits;
    std::function<bool()> reached;
    std::function<Clock::time_point()> progressed;  // of its bytes; may be empty
  };

  // Pauses between polls: first only gives way, then sleeps longer and longer.
  class Backoff {
   public:
    // Zero: give way.
    std::chrono::microseconds next();

   private:
    int polls_ = 0;
    std::chrono::microseconds sleep_{20};
  };

  void progress(const Lock& lock);
  void handle(const Lock& lock, IncomingEnvelope envelope);
  void match(const Lock& lock, const IncomingEnvelope& envelope);
  void deliver(const Lock& lock, MessageTransfer& receive, const IncomingEnvelope& envelope);
  void finish_moved(const Lock& lock);
  void answer_query(const Lock& lock, int asker);
  void read_status(const IncomingEnvelope& envelope);
  void fail(const Lock& lock, std::string_view reason, bool tell_others);
  void throw_if_failed(const Lock& lock, std::string_view op) const;

  void wait_for(Lock& lock, const Goal& goal);
  void settle(Lock& lock, MessageTransfer& transfer);
  std::vector<RankStatus> ask_everybody(Lock& lock, const Goal& goal);
  void set_status(RankStatus::Kind kind, std::string_view text);
  RankStatus own_status(const std::function<std::vector<int>()>& awaits) const;
  void keep_copy(const Lock& lock, MessageTransfer& send);
  void set_ready(MessageTransfer& transfer, const void* address, size_t size_bytes) const;
  void start_send(MessageTransfer& send, int data_tag);
  void pause(Lock& lock, Backoff& backoff);

  void help();
  void say_goodbye(Lock& lock);

  const std::chrono::duration<double> stall_timeout_;
  std::mutex mutex_;
  const std::unique_ptr<Wire> wire_;
  std::shared_ptr<DeviceLink> link_;
  std::map<MessageKey, std::deque<TransferPointer>> expected_;
  std::map<MessageKey, std::deque<IncomingEnvelope>> unexpected_;
  std::map<int64_t, TransferPointer> long_sends_;  // announced or moving, by number
  std::vector<TransferPointer> moving_;
  int64_t next_transfer_ = 0;
  int64_t next_group_ = 1;
  bool failed_ = false;
  std::string failure_;

  RankStatus status_;  // this rank's
  Clock::time_point status_since_ = Clock::now();
  std::vector<int> awaited_;
  std::vector<RankStatus> answers_;  // to the last query; kSilent until one comes
  std::vector<bool> goodbyes_;

  std::atomic<int> waiting_ = 0;  // threads in wait_for(): they poll, the helper need not
  std::condition_variable helper_wakeup_;
  bool stop_helper_ = false;
  std::thread helper_;
};

}  // namespace longspan
