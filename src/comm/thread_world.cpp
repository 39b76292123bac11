#include "comm/thread_world.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "base/check.h"

namespace longspan {
namespace {

void copy_bytes(std::byte* target, const std::byte* source, size_t size_bytes) {
  if (size_bytes > 0) std::memcpy(target, source, size_bytes);
}

// 31 years: longer waits overflow the clock.
constexpr double kLongestWaitSeconds = 1e9;

// Pairs found before their copies start: one call to the driver, while the first bytes move soon.
constexpr size_t kPairsAtOnce = 32;

// What waking a sleeping thread costs, about: with a device, a rank looks for that long before it
// sleeps. Ranks on CPU need their cores for work.
constexpr auto kSpinTime = std::chrono::microseconds(50);

}  // namespace

ThreadWorld::ThreadWorld(int size, double stall_timeout_s,
                         std::shared_ptr<DeviceMemory> device_memory)
    : stall_timeout_(std::min(stall_timeout_s, kLongestWaitSeconds)),
      device_memory_(std::move(device_memory)) {
  for (int rank = 0; rank < size; ++rank) ranks_.push_back(std::make_unique<Rank>());
}

ThreadWorld::TransferPointer ThreadWorld::make_send(int destination, const MessageKey& key,
                                                    std::string_view op, ConstBytes data) {
  auto send = std::make_shared<ThreadTransfer>();
  send->is_send = true;
  send->owner = key.source;
  send->destination = destination;
  send->key = key;
  send->op = op;
  send->source_bytes = data.data();
  send->size_bytes = data.size();
  return send;
}

ThreadWorld::TransferPointer ThreadWorld::make_receive(int rank, const MessageKey& key,
                                                       std::string_view op, MutableBytes data) {
  auto receive = std::make_shared<ThreadTransfer>();
  receive->owner = rank;
  receive->destination = rank;
  receive->key = key;
  receive->op = op;
  receive->target_bytes = data.data();
  receive->size_bytes = data.size();
  return receive;
}

void ThreadWorld::post(int rank, const Transfers& round) {
  set_ready(round);
  std::vector<Pair> pairs;
  Lock guard(mutex_);
  for (const TransferPointer& transfer : round) {
    if (failed_) {
      copy_and_finish(guard, pairs);
      guard.unlock();
      abandon(round);
      guard.lock();
      throw_if_failed(guard, rank, transfer->op);
    }
    queue_or_match(guard, transfer, pairs);
    if (pairs.size() >= kPairsAtOnce) copy_and_finish(guard, pairs);
  }
  copy_and_finish(guard, pairs);
}

// One moment for the round: this rank queues nothing between its messages.
void ThreadWorld::set_ready(const Transfers& round) {
  DeviceMemory::Moment now;
  for (const TransferPointer& transfer : round) {
    const void* address = transfer->is_send ? transfer->source_bytes : transfer->target_bytes;
    transfer->on_device = transfer->size_bytes > 0 && on_device(address);
    if (!transfer->on_device) continue;
    if (!now) now = device_memory_->moment();
    transfer->ready = now;
  }
}

void ThreadWorld::queue_or_match(const Lock& guard, const TransferPointer& transfer,
                                 std::vector<Pair>& pairs) {
  auto& mailbox = at(transfer->destination).mailbox;
  const auto entry = mailbox.try_emplace(transfer->key).first;
  Queues& queues = entry->second;
  Transfers& others = transfer->is_send ? queues.receives : queues.sends;
  if (others.empty()) {
    (transfer->is_send ? queues.sends : queues.receives).push_back(transfer);
    return;
  }
  const TransferPointer other = others.front();
  others.erase(others.begin());
  if (queues.sends.empty() && queues.receives.empty()) mailbox.erase(entry);
  match(guard, transfer->is_send ? Pair{transfer, other} : Pair{other, transfer}, pairs);
}

void ThreadWorld::match(const Lock& guard, const Pair& pair, std::vector<Pair>& pairs) {
  ThreadTransfer& send = *pair.send;
  ThreadTransfer& receive = *pair.receive;
  std::string problem;
  if (send.size_bytes != receive.size_bytes) {
    problem = text("rank ", send.owner, " sends ", send.size_bytes, " bytes in '", send.op,
                   "', but rank ", receive.owner, " expects ", receive.size_bytes, " in '",
                   receive.op, "' (tag ", send.key.tag, ")");
  } else if (send.on_device != receive.on_device) {
    // Between host and device: a copy that nobody asked for.
    problem = text("'", send.op, "' of rank ", send.owner, " and '", receive.op, "' of rank ",
                   receive.owner, ": one buffer is on the device and one is not");
  }
  if (problem.empty()) {
    // While the stage says copying, neither owner leaves its wait, so both buffers stay valid.
    send.stage = receive.stage = ThreadTransfer::Stage::kCopying;
    pairs.push_back(pair);
    return;
  }
  send.problem = receive.problem = problem;
  send.stage = receive.stage = ThreadTransfer::Stage::kDone;
  fail(guard, problem);
}

// Empties the list.
void ThreadWorld::copy_and_finish(Lock& guard, std::vector<Pair>& pairs) {
  if (pairs.empty()) return;
  guard.unlock();
  copy(pairs);
  guard.lock();
  std::vector<int> owners;
  for (const Pair& pair : pairs) {
    for (ThreadTransfer* transfer : {pair.send.get(), pair.receive.get()}) {
      transfer->stage = ThreadTransfer::Stage::kDone;
      if (std::find(owners.begin(), owners.end(), transfer->owner) == owners.end()) {
        owners.push_back(transfer->owner);
      }
    }
  }
  for (const int owner : owners) wake(guard, owner);
  pairs.clear();
}

void ThreadWorld::copy(std::span<const Pair> pairs) {
  // Pairs of the same two ranks share their moments, as a rule, and one batch.
  std::vector<Pair> on_device;
  for (const Pair& pair : pairs) {
    const ThreadTransfer& send = *pair.send;
    if (send.on_device) {
      on_device.push_back(pair);
    } else {
      copy_bytes(pair.receive->target_bytes,
                 send.kept.empty() ? send.source_bytes : send.kept.data(), send.size_bytes);
    }
  }
  const auto peers = [](const Pair& pair) {
    return std::pair(pair.send->owner, pair.receive->owner);
  };
  std::stable_sort(on_device.begin(), on_device.end(),
                   [&](const Pair& a, const Pair& b) { return peers(a) < peers(b); });
  for (size_t begin = 0; begin < on_device.size();) {
    size_t end = begin + 1;
    while (end < on_device.size() && peers(on_device[end]) == peers(on_device[begin])) ++end;
    copy_on_device(std::span(on_device).subspan(begin, end - begin));
    begin = end;
  }
}

void ThreadWorld::copy_on_device(std::span<const Pair> pairs) {
  std::vector<DeviceCopy> copies;
  std::vector<DeviceMemory::Moment> after;
  const auto add = [&after](const DeviceMemory::Moment& moment) {
    if (std::find(after.begin(), after.end(), moment) == after.end()) after.push_back(moment);
  };
  for (const Pair& pair : pairs) {
    const ThreadTransfer& send = *pair.send;
    const std::byte* source = send.kept_on_device ? send.kept_on_device.get() : send.source_bytes;
    copies.push_back({pair.receive->target_bytes, source, send.size_bytes});
    add(send.ready);
    add(pair.receive->ready);
  }
  const DeviceMemory::Moment copied = device_memory_->copy(copies, after);
  for (const Pair& pair : pairs) {
    pair.send->copied = pair.receive->copied = copied;
    pair.send->kept_on_device.reset();  // by the thread that queued the copy from it
  }
}

bool ThreadWorld::done(const Transfers& round) {
  Lock guard(mutex_);
  return failed_ || std::all_of(round.begin(), round.end(), [](const TransferPointer& transfer) {
           return transfer->stage == ThreadTransfer::Stage::kDone;
         });
}

void ThreadWorld::wait(const Transfers& round) {
  std::exception_ptr failure;
  DeviceMemory::Moment last;
  Lock guard(mutex_);
  for (const TransferPointer& transfer : round) {
    try {
      wait(guard, *transfer);
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
    if (!transfer->copied || transfer->copied == last) continue;
    last = transfer->copied;
    device_memory_->wait_for(last);
  }
  if (failure) std::rethrow_exception(failure);
}

void ThreadWorld::wait(Lock& guard, ThreadTransfer& transfer) {
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
}

void ThreadWorld::abandon(const Transfers& round) {
  Lock guard(mutex_);
  bool queued = false;
  for (const TransferPointer& transfer : round) {
    withdraw(guard, *transfer);
    sleep_until_certain(guard, transfer->owner,
                        [&] { return transfer->stage != ThreadTransfer::Stage::kCopying; });
    if (!transfer->copied) continue;
    device_memory_->wait_for(transfer->copied);
    queued = true;
  }
  if (queued) device_memory_->finish();
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

void ThreadWorld::spin(Lock& guard, const std::function<bool()>& ready) const {
  if (!device_memory_) return;
  const auto end = Clock::now() + kSpinTime;
  while (!ready() && !failed_ && Clock::now() < end) {
    guard.unlock();
    std::this_thread::yield();
    guard.lock();
  }
}

void ThreadWorld::sleep_until(Lock& guard, int rank, std::string_view op,
                              const std::function<std::vector<int>()>& awaits,
                              const std::function<bool()>& ready) {
  if (!ready()) {
    Rank& entry = at(rank);
    set_status(rank, RankStatus::Kind::kWaiting, op);
    entry.awaits = awaits;
    const auto deadline = entry.since + std::chrono::duration_cast<Clock::duration>(stall_timeout_);
    spin(guard, ready);
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
