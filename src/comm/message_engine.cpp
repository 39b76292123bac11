#include "comm/message_engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace longspan {
namespace {

using namespace std::chrono_literals;

// How long a failed operation waits for bytes in flight to come to rest before its buffer goes
// back.
constexpr auto kSettleTime = 2s;
constexpr auto kHelperIdlePause = 20ms;
constexpr double kCopyBytesPerSecond = 4e9;

bool is_collective(int64_t channel) {
  return channel % 2 != 0;
}

}  // namespace

std::chrono::microseconds MessageEngine::Backoff::next() {
  if (++polls_ < 20) return 0us;
  return std::exchange(sleep_, std::min<std::chrono::microseconds>(sleep_ * 3 / 2, 500us));
}

void MessageEngine::pause(Lock& lock, Backoff& backoff) {
  const Wire::Sleeper sleep = wire_->sleeper();
  lock.unlock();
  const std::chrono::microseconds time = backoff.next();
  if (time == 0us) {
    std::this_thread::yield();
  } else {
    sleep(time);
  }
  lock.lock();
}

MessageEngine::MessageEngine(std::unique_ptr<Wire> wire, double stall_timeout_s)
    : stall_timeout_(stall_timeout_s), wire_(std::move(wire)) {
  goodbyes_.assign(static_cast<size_t>(wire_->size()), false);
  helper_ = std::thread([this] { help(); });
}

void MessageEngine::set_device_link(std::shared_ptr<DeviceLink> link) {
  const Lock lock(mutex_);
  link_ = std::move(link);
}

void MessageEngine::set_ready(MessageTransfer& transfer, const void* address,
                              size_t size_bytes) const {
  transfer.on_device = link_ && size_bytes > 0 && link_->memory().owns(address);
  if (transfer.on_device) transfer.ready = link_->memory().moment();
}

MessageEngine::TransferPointer MessageEngine::post_send(int destination, int64_t channel,
                                                        int64_t tag, std::string_view op,
                                                        ConstBytes data) {
  const auto send = std::make_shared<MessageTransfer>();
  send->is_send = true;
  send->peer = destination;
  send->op = op;
  send->source = data;
  set_ready(*send, data.data(), data.size());
  Envelope head{.channel = channel,
                .tag = tag,
                .size_bytes = static_cast<int64_t>(data.size()),
                .on_device = send->on_device};

  Lock lock(mutex_);
  throw_if_failed(lock, op);
  if (data.size() <= wire_->payload_limit_bytes() && !send->on_device) {
    head.kind = Envelope::Kind::kMessage;
    wire_->send(destination, head, op, data);
    send->stage = MessageTransfer::Stage::kDone;
  } else {
    send->number = next_transfer_++;
    head.kind = Envelope::Kind::kRequest;
    head.transfer = send->number;
    wire_->send(destination, head, op, {});
    long_sends_[send->number] = send;
  }
  progress(lock);
  helper_wakeup_.notify_one();
  return send;
}

MessageEngine::TransferPointer MessageEngine::post_receive(const MessageKey& key,
                                                           std::string_view op, MutableBytes data) {
  const auto receive = std::make_shared<MessageTransfer>();
  receive->peer = key.source;
  receive->key = key;
  receive->op = op;
  receive->target = data;
  set_ready(*receive, data.data(), data.size());

  Lock lock(mutex_);
  throw_if_failed(lock, op);
  expected_[key].push_back(receive);
  const auto early = unexpected_.find(key);
  if (early != unexpected_.end()) {
    const IncomingEnvelope envelope = std::move(early->second.front());
    early->second.pop_front();
    if (early->second.empty()) unexpected_.erase(early);
    match(lock, envelope);
  }
  progress(lock);
  helper_wakeup_.notify_one();
  return receive;
}

// Never throws: an error of the wire is a failure of the job, which every wait then reports.
void MessageEngine::progress(const Lock& lock) {
  try {
    for (IncomingEnvelope& envelope : wire_->poll()) handle(lock, std::move(envelope));
    finish_moved(lock);
  } catch (const std::exception& error) {
    fail(lock, error.what(), true);
  }
}

void MessageEngine::handle(const Lock& lock, IncomingEnvelope envelope) {
  switch (envelope.head.kind) {
    case Envelope::Kind::kAbort:
      return fail(lock, envelope.text, wire_->shows_who_leaves());
    case Envelope::Kind::kQuery:
      return answer_query(lock, envelope.source);
    case Envelope::Kind::kStatus:
      return read_status(envelope);
    case Envelope::Kind::kGoodbye:
      goodbyes_[static_cast<size_t>(envelope.source)] = true;
      return;
    case Envelope::Kind::kClear: {
      const auto entry = long_sends_.find(envelope.head.transfer);
      if (failed_ || entry == long_sends_.end()) return;  // given up
      start_send(*entry->second, envelope.head.data_tag);
      if (entry->second->stage == MessageTransfer::Stage::kMoving) {
        moving_.push_back(entry->second);
      } else {
        long_sends_.erase(entry);
      }
      return;
    }
    case Envelope::Kind::kMessage:
    case Envelope::Kind::kRequest: {
      if (failed_) return;  // the receive may have been given up, and its buffer with it
      const MessageKey key{envelope.head.channel, envelope.source, envelope.head.tag};
      if (expected_.count(key)) return match(lock, envelope);
      unexpected_[key].push_back(std::move(envelope));
      return;
    }
  }
}

void MessageEngine::start_send(MessageTransfer& send, int data_tag) {
  if (!send.on_device) {
    send.bulk = wire_->send_bulk(send.peer, data_tag, send.source);
    send.stage = MessageTransfer::Stage::kMoving;
    return;
  }
  send.moved = link_->send(send.peer, send.source, send.ready);
  send.stage = MessageTransfer::Stage::kDone;
  if (!send.kept_on_device) return;
  // The thread that drops the copy frees it on the queue of its copies: behind the message.
  link_->memory().copy({}, {&send.moved, 1});
  send.kept_on_device.reset();
}

// The oldest receive posted for the envelope's key takes it.
void MessageEngine::match(const Lock& lock, const IncomingEnvelope& envelope) {
  const MessageKey key{envelope.head.channel, envelope.source, envelope.head.tag};
  const auto entry = expected_.find(key);
  const TransferPointer receive = entry->second.front();
  entry->second.pop_front();
  if (entry->second.empty()) expected_.erase(entry);
  deliver(lock, *receive, envelope);
  if (receive->stage == MessageTransfer::Stage::kMoving) moving_.push_back(receive);
}

void MessageEngine::deliver(const Lock& lock, MessageTransfer& receive,
                            const IncomingEnvelope& envelope) {
  const Envelope& head = envelope.head;
  if (static_cast<size_t>(head.size_bytes) != receive.target.size() ||
      (is_collective(head.channel) && envelope.text != receive.op)) {
    receive.problem =
        text(is_collective(head.channel) ? "collectives disagree: " : "", "rank ", envelope.source,
             " sends ", head.size_bytes, " bytes in '", envelope.text, "', but rank ", rank(),
             " expects ", receive.target.size(), " in '", receive.op, "' (tag ", head.tag, ")");
    receive.stage = MessageTransfer::Stage::kDone;
    return fail(lock, receive.problem, true);
  }
  if (receive.on_device != (head.on_device != 0)) {
    // Between host and device: a copy that nobody asked for.
    receive.problem = text("'", envelope.text, "' of rank ", envelope.source, " and '", receive.op,
                           "' of rank ", rank(), ": one buffer is on the device and one is not");
    receive.stage = MessageTransfer::Stage::kDone;
    return fail(lock, receive.problem, true);
  }
  if (head.kind == Envelope::Kind::kMessage) {
    std::copy(envelope.payload.begin(), envelope.payload.end(), receive.target.begin());
    receive.stage = MessageTransfer::Stage::kDone;
    return;
  }
  if (receive.on_device) {
    // First the news: the peer is asked for as soon as this rank is.
    wire_->send(envelope.source, {.kind = Envelope::Kind::kClear, .transfer = head.transfer}, {},
                {});
    receive.moved = link_->receive(envelope.source, receive.target, receive.ready);
    receive.stage = MessageTransfer::Stage::kDone;
    return;
  }
  receive.data_tag = wire_->take_data_tag(envelope.source);
  receive.bulk = wire_->receive_bulk(envelope.source, receive.data_tag, receive.target);
  receive.stage = MessageTransfer::Stage::kMoving;
  wire_->send(
      envelope.source,
      {.kind = Envelope::Kind::kClear, .data_tag = receive.data_tag, .transfer = head.transfer}, {},
      {});
}

void MessageEngine::finish_moved(const Lock&) {
  std::erase_if(moving_, [this](const TransferPointer& transfer) {
    if (transfer->bulk->parts_left > 0) return false;
    transfer->stage = MessageTransfer::Stage::kDone;
    if (transfer->is_send) {
      long_sends_.erase(transfer->number);
    } else {
      wire_->return_data_tag(transfer->peer, transfer->data_tag);
    }
    return true;
  });
}

bool MessageEngine::done(const MessageTransfer& transfer) {
  Lock lock(mutex_);
  progress(lock);
  return failed_ || transfer.stage == MessageTransfer::Stage::kDone;
}

void MessageEngine::wait(MessageTransfer& transfer) {
  Lock lock(mutex_);
  // Whatever ends the wait: what this rank queues next must not touch a buffer in use.
  const auto queue_behind = [&] {
    if (transfer.moved) link_->memory().wait_for(transfer.moved);
  };
  // A send that nobody has asked for yet is worth waiting as long as its copy would take.
  const auto patience =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                         static_cast<double>(transfer.source.size()) / kCopyBytesPerSecond));
  const auto reached = [&] {
    if (transfer.stage == MessageTransfer::Stage::kDone || !transfer.kept.empty() ||
        transfer.kept_on_device) {
      return true;
    }
    if (!transfer.is_send || transfer.stage != MessageTransfer::Stage::kPosted) return false;
    if (Clock::now() < patience) return false;
    keep_copy(lock, transfer);
    return true;
  };
  try {
    wait_for(lock,
             {.op = transfer.op,
              .awaits = [&] { return std::vector<int>{transfer.peer}; },
              .reached = reached,
              .progressed =
                  [&] { return transfer.bulk ? transfer.bulk->progressed : Clock::time_point{}; }});
    queue_behind();
  } catch (...) {
    settle(lock, transfer);
    queue_behind();
    if (!transfer.problem.empty()) throw InternalError(transfer.problem);
    throw;
  }
}

void MessageEngine::keep_copy(const Lock&, MessageTransfer& send) {
  if (send.on_device) {
    DeviceMemory& memory = link_->memory();
    DeviceMemory::Moment copied;
    send.kept_on_device =
        memory.duplicate(send.source.data(), send.source.size(), send.ready, &copied);
    memory.wait_for(copied);
    send.source = {send.kept_on_device.get(), send.source.size()};
    send.ready = std::move(copied);
    return;
  }
  send.kept.assign(send.source.begin(), send.source.end());
  send.source = send.kept;
}

void MessageEngine::abandon(MessageTransfer& transfer) {
  Lock lock(mutex_);
  settle(lock, transfer);
  if (transfer.moved) link_->memory().wait_for(transfer.moved);
}

// Takes a transfer out of everything that could still touch its buffer. Bytes in flight to or from
// a rank that has died may not come to rest; then the job is at its end, and the buffer with it.
void MessageEngine::settle(Lock& lock, MessageTransfer& transfer) {
  if (transfer.stage == MessageTransfer::Stage::kPosted) {
    if (transfer.is_send) {
      long_sends_.erase(transfer.number);
    } else if (const auto entry = expected_.find(transfer.key); entry != expected_.end()) {
      std::erase_if(entry->second,
                    [&](const TransferPointer& other) { return other.get() == &transfer; });
      if (entry->second.empty()) expected_.erase(entry);
    }
    return;
  }
  if (transfer.stage != MessageTransfer::Stage::kMoving) return;
  if (!transfer.is_send) wire_->cancel(*transfer.bulk);
  Backoff backoff;
  const auto deadline = Clock::now() + kSettleTime;
  while (transfer.bulk->parts_left > 0 && Clock::now() < deadline) {
    progress(lock);
    pause(lock, backoff);
  }
}

void MessageEngine::wait_for(Lock& lock, const Goal& goal) {
  progress(lock);
  if (!failed_ && goal.reached()) return;
  ++waiting_;
  set_status(RankStatus::Kind::kWaiting, goal.op);
  awaited_ = goal.awaits();
  const auto begin = Clock::now();
  Backoff backoff;
  while (!failed_ && !goal.reached()) {
    pause(lock, backoff);
    progress(lock);
    const auto moved = goal.progressed ? goal.progressed() : begin;
    if (Clock::now() - std::max(begin, moved) <= stall_timeout_ || failed_ || goal.reached()) {
      continue;
    }
    const std::vector<RankStatus> statuses = ask_everybody(lock, goal);
    if (!failed_ && !goal.reached()) fail(lock, stall_report(statuses, rank()), true);
  }
  --waiting_;
  set_status(RankStatus::Kind::kAfter, goal.op);
  throw_if_failed(lock, goal.op);
}

void MessageEngine::fail(std::string_view reason) {
  const Lock lock(mutex_);
  fail(lock, reason, true);
}

void MessageEngine::fail(const Lock&, std::string_view reason, bool tell_others) {
  if (failed_) return;
  failed_ = true;
  failure_ = reason;
  try {
    for (int other = 0; tell_others && other < size(); ++other) {
      if (other != rank()) wire_->send(other, {.kind = Envelope::Kind::kAbort}, reason, {});
    }
  } catch (const std::exception&) {
    // Without the wire no news travels; the others learn it from their own stall or the launcher.
  }
  if (link_) link_->abort();
}

void MessageEngine::throw_if_failed(const Lock&, std::string_view op) const {
  if (failed_) throw DistributedError(text("rank ", rank(), " in '", op, "': ", failure_));
}

// The helper thread: rare polls while nothing is under way or the rank polls itself, frequent ones
// while it computes with messages under way.
void MessageEngine::help() {
  Lock lock(mutex_);
  std::chrono::microseconds pause = 100us;
  int64_t events = 0;
  bool knows_device = false;
  while (!stop_helper_) {
    if (link_ && !std::exchange(knows_device, true)) link_->enter_thread();
    progress(lock);
    const bool busy = !wire_->idle() || !expected_.empty() || !long_sends_.empty();
    if (waiting_ > 0 || (!busy && !wire_->wakes_sleepers())) {
      helper_wakeup_.wait_for(lock, kHelperIdlePause);
      pause = 100us;
      continue;
    }
    const bool moved = std::exchange(events, wire_->events()) != wire_->events();
    pause = moved ? 100us : std::min<std::chrono::microseconds>(pause * 2, 1ms);
    if (!wire_->wakes_sleepers()) {
      helper_wakeup_.wait_for(lock, pause);
      continue;
    }
    const Wire::Sleeper sleep = wire_->sleeper();
    lock.unlock();
    sleep(pause);
    lock.lock();
  }
}

// Everything this rank has sent is delivered, and then everybody says so.
void MessageEngine::say_goodbye(Lock& lock) {
  wait_for(lock, {.op = "delivery of the last messages",
                  .awaits =
                      [this] {
                        std::vector<int> peers;
                        for (const auto& [number, send] : long_sends_) peers.push_back(send->peer);
                        return peers;
                      },
                  .reached = [this] { return long_sends_.empty() && wire_->idle(); }});
  if (link_) {
    // No process takes its end of the link away while others still move bytes over it.
    lock.unlock();
    link_->finish();
    lock.lock();
    throw_if_failed(lock, "delivery of the last messages");
  }
  for (int other = 0; other < size(); ++other) {
    if (other != rank()) wire_->send(other, {.kind = Envelope::Kind::kGoodbye}, {}, {});
  }
  goodbyes_[static_cast<size_t>(rank())] = true;
  set_status(RankStatus::Kind::kFinished, {});
  // The others may have work of their own for any length of time; a rank that is gone ends the job.
  Backoff backoff;
  while (!failed_ && !(wire_->idle() &&
                       std::find(goodbyes_.begin(), goodbyes_.end(), false) == goodbyes_.end())) {
    pause(lock, backoff);
    progress(lock);
  }
}

MessageEngine::~MessageEngine() {
  Lock lock(mutex_);
  try {
    if (std::uncaught_exceptions() > 0) fail(lock, text("rank ", rank(), " ended early"), true);
    if (!failed_) say_goodbye(lock);
  } catch (const std::exception& error) {
    fail(lock, error.what(), true);
  }
  stop_helper_ = true;
  helper_wakeup_.notify_all();
  lock.unlock();
  helper_.join();
  lock.lock();
  try {
    // The news of a failure must leave before the process does.
    Backoff backoff;
    const auto deadline = Clock::now() + 1s;
    while (failed_ && !wire_->idle() && Clock::now() < deadline) {
      pause(lock, backoff);
      progress(lock);
    }
    wire_->close(!failed_);
  } catch (const std::exception&) {
    // The job has failed, and the wire with it; whoever ends the process has the first error
    // already.
  }
}

}  // namespace longspan
