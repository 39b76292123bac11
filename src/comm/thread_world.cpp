#include "comm/thread_world.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace longspan {
namespace {

void copy_bytes(std::byte* target, const std::byte* source, size_t size_bytes) {
  if (size_bytes > 0) std::memcpy(target, source, size_bytes);
}

// 31 years: longer waits overflow the clock.
constexpr double kLongestWaitSeconds = 1e9;

}  // namespace

ThreadWorld::ThreadWorld(int size, double stall_timeout_s,
                         std::shared_ptr<DeviceMemory> device_memory)
    : stall_timeout_(std::min(stall_timeout_s, kLongestWaitSeconds)),
      device_memory_(std::move(device_memory)) {
  for (int rank = 0; rank < size; ++rank) ranks_.push_back(std::make_unique<Rank>());
}

ThreadWorld::TransferPointer ThreadWorld::post_send(int destination, const MessageKey& key,
                                                    std::string_view op, ConstBytes data) {
  auto send = std::make_shared<ThreadTransfer>();
  send->is_send = true;
  send->owner = key.source;
  send->destination = destination;
  send->key = key;
  send->op = op;
  send->source_bytes = data.data();
  send->size_bytes = data.size();
  set_ready(*send, data.data());

  Lock guard(mutex_);
  throw_if_failed(guard, send->owner, op);
  Queues& queues = at(destination).mailbox[key];
  if (queues.receives.empty()) {
    queues.sends.push_back(send);
    return send;
  }
  const TransferPointer receive = queues.receives.front();
  queues.receives.pop_front();
  copy_and_finish(guard, *send, *receive);
  return send;
}

ThreadWorld::TransferPointer ThreadWorld::post_receive(int rank, const MessageKey& key,
                                                       std::string_view op, MutableBytes data) {
  auto receive = std::make_shared<ThreadTransfer>();
  receive->owner = rank;
  receive->destination = rank;
  receive->key = key;
  receive->op = op;
  receive->target_bytes = data.data();
  receive->size_bytes = data.size();
  set_ready(*receive, data.data());

  Lock guard(mutex_);
  throw_if_failed(guard, rank, op);
  Queues& queues = at(rank).mailbox[key];
  if (queues.sends.empty()) {
    queues.receives.push_back(receive);
    return receive;
  }
  const TransferPointer send = queues.sends.front();
  queues.sends.pop_front();
  copy_and_finish(guard, *send, *receive);
  return receive;
}

void ThreadWorld::copy_and_finish(Lock& guard, ThreadTransfer& send, ThreadTransfer& receive) {
  auto& mailbox = at(receive.owner).mailbox;
  const auto entry = mailbox.find(send.key);
  if (entry != mailbox.end() && entry->second.sends.empty() && entry->second.receives.empty()) {
    mailbox.erase(entry);
  }
  if (send.size_bytes != receive.size_bytes) {
    const std::string problem =
        text("rank ", send.owner, " sends ", send.size_bytes, " bytes in '", send.op,
             "', but rank ", receive.owner, " expects ", receive.size_bytes, " in '", receive.op,
             "' (tag ", send.key.tag, ")");
    send.problem = problem;
    receive.problem = problem;
    fail(guard, problem);
  } else {
    // While the stage says copying, neither owner leaves its wait, so both buffers stay valid.
    send.stage = ThreadTransfer::Stage::kCopying;
    receive.stage = ThreadTransfer::Stage::kCopying;
    guard.unlock();
    copy(send, receive);
    guard.lock();
  }
  send.stage = ThreadTransfer::Stage::kDone;
  receive.stage = ThreadTransfer::Stage::kDone;
  wake(guard, send.owner);
  wake(guard, receive.owner);
}

void ThreadWorld::set_ready(ThreadTransfer& transfer, const void* address) {
  transfer.on_device = transfer.size_bytes > 0 && on_device(address);
  if (transfer.on_device) transfer.ready = device_memory_->moment();
}

// Host or device on both sides: a message between the two would be a copy that nobody asked for.
void ThreadWorld::copy(ThreadTransfer& send, ThreadTransfer& receive) {
  if (send.on_device != receive.on_device) {
    send.problem = receive.problem =
        text("'", send.op, "' of rank ", send.owner, " and '", receive.op, "' of rank ",
             receive.owner, ": one buffer is on the device and one is not");
    return fail(send.problem);
  }
  if (!send.on_device) {
    return copy_bytes(receive.target_bytes,
                      send.kept.empty() ? send.source_bytes : send.kept.data(), send.size_bytes);
  }
  const std::byte* source = send.kept_on_device ? send.kept_on_device.get() : send.source_bytes;
  const DeviceMemory::Moment after[] = {send.ready, receive.ready};
  send.copied = device_memory_->copy(receive.target_bytes, source, send.size_bytes, after);
  receive.copied = send.copied;
}

bool ThreadWorld::done(const ThreadTransfer& transfer) {
  Lock guard(mutex_);
  return failed_ || transfer.stage == ThreadTransfer::Stage::kDone;
}

void ThreadWorld::wait(ThreadTransfer& transfer) {
  Lock guard(mutex_);
  if (transfer.is_send && !failed_ && leave_copy_behind(guard, transfer)) return;
  const auto awaits = [&transfer] { return std::vector<int>{transfer.peer()}; };
  const auto begun = [&transfer] { return transfer.stage != ThreadTransfer::Stage::kPosted; };
  try {
    sleep_until(guard, transfer.owner, transfer.op, awaits, begun);
  } catch (...) {
    withdraw(guard, transfer);
    throw;
  }
  sleep_until_certain(guard, transfer.owner,
                      [&] { return transfer.stage == ThreadTransfer::Stage::kDone; });
  if (!transfer.problem.empty()) throw InternalError(transfer.problem);
  throw_if_failed(guard, transfer.owner, transfer.op);
  if (transfer.on_device) device_memory_->wait_for(transfer.copied);
}

void ThreadWorld::abandon(ThreadTransfer& transfer) {
  Lock guard(mutex_);
  withdraw(guard, transfer);
  sleep_until_certain(guard, transfer.owner,
                      [&] { return transfer.stage != ThreadTransfer::Stage::kCopying; });
  if (transfer.copied) {
    device_memory_->wait_for(transfer.copied);
    device_memory_->finish();
  }
}

// True if nobody had asked for the message and its copy now stands in the mailbox. The receiver may
// come while we copy; it then reads the sender's buffer as we do, and the copy is dropped.
bool ThreadWorld::leave_copy_behind(Lock& guard, ThreadTransfer& send) {
  if (send.stage != ThreadTransfer::Stage::kPosted) return false;
  guard.unlock();
  std::vector<std::byte> copy;
  std::shared_ptr<const std::byte> copy_on_device;
  DeviceMemory::Moment copied;
  if (send.on_device) {
    copy_on_device =
        device_memory_->duplicate(send.source_bytes, send.size_bytes, send.ready, &copied);
    device_memory_->wait_for(copied);
  } else {
    copy.assign(send.source_bytes, send.source_bytes + send.size_bytes);
  }
  guard.lock();
  if (send.stage != ThreadTransfer::Stage::kPosted) return false;
  send.kept = std::move(copy);
  send.kept_on_device = std::move(copy_on_device);
  send.ready = std::move(copied);
  return true;
}

void ThreadWorld::withdraw(const Lock&, ThreadTransfer& transfer) {
  if (transfer.stage != ThreadTransfer::Stage::kPosted) return;
  auto& mailbox = at(transfer.destination).mailbox;
  const auto entry = mailbox.find(transfer.key);
  if (entry == mailbox.end()) return;
  auto& queue = transfer.is_send ? entry->second.sends : entry->second.receives;
  std::erase_if(queue, [&](const TransferPointer& other) { return other.get() == &transfer; });
  if (entry->second.sends.empty() && entry->second.receives.empty()) mailbox.erase(entry);
}

void ThreadWorld::set_status(int rank, RankStatus::Kind kind, std::string_view text) {
  Rank& entry = at(rank);
  entry.status.kind = kind;
  entry.status.text = text;
  entry.since = Clock::now();
}

void ThreadWorld::set_activity(int rank, std::string_view op) {
  Lock guard(mutex_);
  set_status(rank, RankStatus::Kind::kActivity, op);
}

void ThreadWorld::set_finished(int rank) {
  Lock guard(mutex_);
  set_status(rank, RankStatus::Kind::kFinished, "");
}

std::vector<RankStatus> ThreadWorld::statuses() {
  const Lock guard(mutex_);
  return statuses(guard);
}

std::vector<RankStatus> ThreadWorld::statuses(const Lock&) const {
  std::vector<RankStatus> all;
  for (const auto& entry : ranks_) {
    all.push_back(entry->status);
    all.back().seconds = std::chrono::duration<double>(Clock::now() - entry->since).count();
    if (entry->status.kind == RankStatus::Kind::kWaiting) all.back().awaits = entry->awaits();
  }
  return all;
}

void ThreadWorld::fail(std::string_view reason) {
  const Lock guard(mutex_);
  fail(guard, reason);
}

void ThreadWorld::fail(const Lock&, std::string_view reason) {
  if (failed_) return;
  failed_ = true;
  failure_ = reason;
  for (const auto& entry : ranks_) entry->wakeup.notify_all();
}

void ThreadWorld::throw_if_failed(const Lock&, int rank, std::string_view op) const {
  if (failed_) throw DistributedError(text("rank ", rank, " in '", op, "': ", failure_));
}

void ThreadWorld::wake(const Lock&, int rank) {
  at(rank).wakeup.notify_all();
}

void ThreadWorld::sleep_until(Lock& guard, int rank, std::string_view op,
                              const std::function<std::vector<int>()>& awaits,
                              const std::function<bool()>& ready) {
  if (!ready()) {
    Rank& entry = at(rank);
    set_status(rank, RankStatus::Kind::kWaiting, op);
    entry.awaits = awaits;
    const auto deadline = entry.since + std::chrono::duration_cast<Clock::duration>(stall_timeout_);
    while (!ready() && !failed_) {
      const bool late = entry.wakeup.wait_until(guard, deadline) == std::cv_status::timeout;
      if (late && !ready() && !failed_) fail(guard, stall_report(statuses(guard), rank));
    }
  }
  const bool complete = ready();
  set_status(rank, RankStatus::Kind::kAfter, op);
  if (!complete) throw_if_failed(guard, rank, op);
}

void ThreadWorld::sleep_until_certain(Lock& guard, int rank, const std::function<bool()>& ready) {
  at(rank).wakeup.wait(guard, ready);
}

int64_t ThreadWorld::new_group(const Lock&) {
  return groups_++;
}

}  // namespace longspan
