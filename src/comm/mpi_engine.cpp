#include "comm/mpi_engine.h"

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
// A rank that has not answered a query by then is reported as silent; helpers answer within 20 ms.
constexpr auto kAnswerTime = 2s;
constexpr auto kHelperIdlePause = 20ms;
constexpr double kCopyBytesPerSecond = 4e9;

// Pauses between polls: first only gives way, then sleeps longer and longer.
class Backoff {
 public:
  void pause(std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    if (++polls_ < 20) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(sleep_);
      sleep_ = std::min<std::chrono::microseconds>(sleep_ * 3 / 2, 500us);
    }
    lock.lock();
  }

 private:
  int polls_ = 0;
  std::chrono::microseconds sleep_ = 20us;
};

bool is_collective(int64_t channel) {
  return channel % 2 != 0;
}

}  // namespace

MpiEngine::MpiEngine(double stall_timeout_s, int64_t part_bytes)
    : stall_timeout_(stall_timeout_s), wire_(part_bytes) {
  goodbyes_.assign(static_cast<size_t>(wire_.size()), false);
  helper_ = std::thread([this] { help(); });
}

MpiEngine::TransferPointer MpiEngine::post_send(int destination, int64_t channel, int64_t tag,
                                                std::string_view op, ConstBytes data) {
  const auto send = std::make_shared<MpiTransfer>();
  send->is_send = true;
  send->peer = destination;
  send->op = op;
  send->source = data;
  Envelope head{.channel = channel, .tag = tag, .size_bytes = static_cast<int64_t>(data.size())};

  Lock lock(mutex_);
  throw_if_failed(lock, op);
  if (data.size() <= MpiWire::payload_limit_bytes()) {
    head.kind = Envelope::Kind::kMessage;
    wire_.send(destination, head, op, data);
    send->stage = MpiTransfer::Stage::kDone;
  } else {
    send->number = next_transfer_++;
    head.kind = Envelope::Kind::kRequest;
    head.transfer = send->number;
    wire_.send(destination, head, op, {});
    long_sends_[send->number] = send;
  }
  progress(lock);
  helper_wakeup_.notify_one();
  return send;
}

MpiEngine::TransferPointer MpiEngine::post_receive(const MessageKey& key, std::string_view op,
                                                   MutableBytes data) {
  const auto receive = std::make_shared<MpiTransfer>();
  receive->peer = key.source;
  receive->key = key;
  receive->op = op;
  receive->target = data;

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

// Never throws: an error of the MPI library is a failure of the job, which every wait then reports.
void MpiEngine::progress(const Lock& lock) {
  try {
    for (IncomingEnvelope& envelope : wire_.poll()) handle(lock, std::move(envelope));
    finish_moved(lock);
  } catch (const std::exception& error) {
    fail(lock, error.what(), true);
  }
}

void MpiEngine::handle(const Lock& lock, IncomingEnvelope envelope) {
  switch (envelope.head.kind) {
    case Envelope::Kind::kAbort:
      return fail(lock, envelope.text, false);
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
      MpiTransfer& send = *entry->second;
      send.bulk = wire_.send_bulk(send.peer, envelope.head.data_tag, send.source);
      send.stage = MpiTransfer::Stage::kMoving;
      moving_.push_back(entry->second);
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

// The oldest receive posted for the envelope's key takes it.
void MpiEngine::match(const Lock& lock, const IncomingEnvelope& envelope) {
  const MessageKey key{envelope.head.channel, envelope.source, envelope.head.tag};
  const auto entry = expected_.find(key);
  const TransferPointer receive = entry->second.front();
  entry->second.pop_front();
  if (entry->second.empty()) expected_.erase(entry);
  deliver(lock, *receive, envelope);
  if (receive->stage == MpiTransfer::Stage::kMoving) moving_.push_back(receive);
}

void MpiEngine::deliver(const Lock& lock, MpiTransfer& receive, const IncomingEnvelope& envelope) {
  const Envelope& head = envelope.head;
  if (static_cast<size_t>(head.size_bytes) != receive.target.size() ||
      (is_collective(head.channel) && envelope.text != receive.op)) {
    receive.problem =
        text(is_collective(head.channel) ? "collectives disagree: " : "", "rank ", envelope.source,
             " sends ", head.size_bytes, " bytes in '", envelope.text, "', but rank ", rank(),
             " expects ", receive.target.size(), " in '", receive.op, "' (tag ", head.tag, ")");
    receive.stage = MpiTransfer::Stage::kDone;
    return fail(lock, receive.problem, true);
  }
  if (head.kind == Envelope::Kind::kMessage) {
    std::copy(envelope.payload.begin(), envelope.payload.end(), receive.target.begin());
    receive.stage = MpiTransfer::Stage::kDone;
    return;
  }
  receive.data_tag = wire_.take_data_tag(envelope.source);
  receive.bulk = wire_.receive_bulk(envelope.source, receive.data_tag, receive.target);
  receive.stage = MpiTransfer::Stage::kMoving;
  wire_.send(
      envelope.source,
      {.kind = Envelope::Kind::kClear, .data_tag = receive.data_tag, .transfer = head.transfer}, {},
      {});
}

void MpiEngine::finish_moved(const Lock&) {
  std::erase_if(moving_, [this](const TransferPointer& transfer) {
    if (transfer->bulk->parts_left > 0) return false;
    transfer->stage = MpiTransfer::Stage::kDone;
    if (transfer->is_send) {
      long_sends_.erase(transfer->number);
    } else {
      wire_.return_data_tag(transfer->peer, transfer->data_tag);
    }
    return true;
  });
}

bool MpiEngine::done(const MpiTransfer& transfer) {
  Lock lock(mutex_);
  progress(lock);
  return failed_ || transfer.stage == MpiTransfer::Stage::kDone;
}

void MpiEngine::wait(MpiTransfer& transfer) {
  Lock lock(mutex_);
  // A send that nobody has asked for yet is worth waiting as long as its copy would take.
  const auto patience =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                         static_cast<double>(transfer.source.size()) / kCopyBytesPerSecond));
  const auto reached = [&] {
    if (transfer.stage == MpiTransfer::Stage::kDone || !transfer.kept.empty()) return true;
    if (!transfer.is_send || transfer.stage != MpiTransfer::Stage::kPosted) return false;
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
  } catch (...) {
    settle(lock, transfer);
    if (!transfer.problem.empty()) throw InternalError(transfer.problem);
    throw;
  }
}

void MpiEngine::keep_copy(const Lock&, MpiTransfer& send) {
  send.kept.assign(send.source.begin(), send.source.end());
  send.source = send.kept;
}

void MpiEngine::abandon(MpiTransfer& transfer) {
  Lock lock(mutex_);
  settle(lock, transfer);
}

// Takes a transfer out of everything that could still touch its buffer. Bytes in flight to or from
// a rank that has died may not come to rest; then the job is at its end, and the buffer with it.
void MpiEngine::settle(Lock& lock, MpiTransfer& transfer) {
  if (transfer.stage == MpiTransfer::Stage::kPosted) {
    if (transfer.is_send) {
      long_sends_.erase(transfer.number);
    } else if (const auto entry = expected_.find(transfer.key); entry != expected_.end()) {
      std::erase_if(entry->second,
                    [&](const TransferPointer& other) { return other.get() == &transfer; });
      if (entry->second.empty()) expected_.erase(entry);
    }
    return;
  }
  if (transfer.stage != MpiTransfer::Stage::kMoving) return;
  if (!transfer.is_send) wire_.cancel(*transfer.bulk);
  Backoff backoff;
  const auto deadline = Clock::now() + kSettleTime;
  while (transfer.bulk->parts_left > 0 && Clock::now() < deadline) {
    progress(lock);
    backoff.pause(lock);
  }
}

void MpiEngine::wait_for(Lock& lock, const Goal& goal) {
  progress(lock);
  if (!failed_ && goal.reached()) return;
  ++waiting_;
  set_status(RankStatus::Kind::kWaiting, goal.op);
  awaited_ = goal.awaits();
  const auto begin = Clock::now();
  Backoff backoff;
  while (!failed_ && !goal.reached()) {
    backoff.pause(lock);
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

std::vector<RankStatus> MpiEngine::ask_everybody(Lock& lock, const Goal& goal) {
  answers_.assign(static_cast<size_t>(size()), RankStatus{.kind = RankStatus::Kind::kSilent});
  for (int other = 0; other < size(); ++other) {
    if (other != rank()) wire_.send(other, {.kind = Envelope::Kind::kQuery}, {}, {});
  }
  const auto complete = [this] {
    return std::count_if(answers_.begin(), answers_.end(), [](const RankStatus& status) {
             return status.kind == RankStatus::Kind::kSilent;
           }) == 1;  // this rank's own
  };
  Backoff backoff;
  const auto deadline = Clock::now() + kAnswerTime;
  while (!complete() && !failed_ && Clock::now() < deadline) {
    backoff.pause(lock);
    progress(lock);
  }
  std::vector<RankStatus> statuses = answers_;
  statuses[static_cast<size_t>(rank())] = own_status(goal.awaits);
  return statuses;
}

RankStatus MpiEngine::own_status(const std::function<std::vector<int>()>& awaits) const {
  RankStatus status = status_;
  status.seconds = std::chrono::duration<double>(Clock::now() - status_since_).count();
  if (awaits) status.awaits = awaits();
  return status;
}

void MpiEngine::answer_query(const Lock&, int asker) {
  RankStatus status = own_status({});
  if (status.kind == RankStatus::Kind::kWaiting) status.awaits = awaited_;
  status.awaits.resize(
      std::min(status.awaits.size(), MpiWire::payload_limit_bytes() / sizeof(int)));
  wire_.send(asker,
             {.kind = Envelope::Kind::kStatus,
              .seconds = status.seconds,
              .status_kind = static_cast<int32_t>(status.kind)},
             status.text, std::as_bytes(std::span(status.awaits)));
}

void MpiEngine::read_status(const IncomingEnvelope& envelope) {
  if (answers_.empty()) return;
  RankStatus& status = answers_[static_cast<size_t>(envelope.source)];
  status.kind = static_cast<RankStatus::Kind>(envelope.head.status_kind);
  status.text = envelope.text;
  status.seconds = envelope.head.seconds;
  status.awaits.resize(envelope.payload.size() / sizeof(int));
  if (!envelope.payload.empty()) {
    std::memcpy(status.awaits.data(), envelope.payload.data(), status.awaits.size() * sizeof(int));
  }
}

void MpiEngine::set_status(RankStatus::Kind kind, std::string_view text) {
  status_.kind = kind;
  status_.text = text;
  status_since_ = Clock::now();
}

void MpiEngine::set_activity(std::string_view op) {
  const Lock lock(mutex_);
  set_status(RankStatus::Kind::kActivity, op);
}

void MpiEngine::fail(std::string_view reason) {
  const Lock lock(mutex_);
  fail(lock, reason, true);
}

void MpiEngine::fail(const Lock&, std::string_view reason, bool tell_others) {
  if (failed_) return;
  failed_ = true;
  failure_ = reason;
  if (!tell_others) return;
  try {
    for (int other = 0; other < size(); ++other) {
      if (other != rank()) wire_.send(other, {.kind = Envelope::Kind::kAbort}, reason, {});
    }
  } catch (const std::exception&) {
    // Without MPI no news travels; the others learn it from their own stall or from mpirun.
  }
}

void MpiEngine::throw_if_failed(const Lock&, std::string_view op) const {
  if (failed_) throw DistributedError(text("rank ", rank(), " in '", op, "': ", failure_));
}

// The helper thread: rare polls while nothing is under way or the rank polls itself, frequent ones
// while it computes with messages under way.
void MpiEngine::help() {
  Lock lock(mutex_);
  std::chrono::microseconds pause = 100us;
  int64_t events = 0;
  while (!stop_helper_) {
    progress(lock);
    const bool busy = !wire_.idle() || !expected_.empty() || !long_sends_.empty();
    if (!busy || waiting_ > 0) {
      helper_wakeup_.wait_for(lock, kHelperIdlePause);
      pause = 100us;
      continue;
    }
    pause = wire_.events() != events ? 100us : std::min<std::chrono::microseconds>(pause * 2, 1ms);
    events = wire_.events();
    helper_wakeup_.wait_for(lock, pause);
  }
}

// Everything this rank has sent is delivered, and then everybody says so.
void MpiEngine::say_goodbye(Lock& lock) {
  wait_for(lock, {.op = "delivery of the last messages",
                  .awaits =
                      [this] {
                        std::vector<int> peers;
                        for (const auto& [number, send] : long_sends_) peers.push_back(send->peer);
                        return peers;
                      },
                  .reached = [this] { return long_sends_.empty() && wire_.idle(); }});
  for (int other = 0; other < size(); ++other) {
    if (other != rank()) wire_.send(other, {.kind = Envelope::Kind::kGoodbye}, {}, {});
  }
  goodbyes_[static_cast<size_t>(rank())] = true;
  set_status(RankStatus::Kind::kFinished, {});
  // The others may have work of their own for any length of time; a rank that is gone ends the job.
  Backoff backoff;
  while (!failed_ && !(wire_.idle() &&
                       std::find(goodbyes_.begin(), goodbyes_.end(), false) == goodbyes_.end())) {
    backoff.pause(lock);
    progress(lock);
  }
}

MpiEngine::~MpiEngine() {
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
    while (failed_ && !wire_.idle() && Clock::now() < deadline) {
      backoff.pause(lock);
      progress(lock);
    }
    wire_.close(!failed_);
  } catch (const std::exception&) {
    // The job has failed, and MPI with it; whoever ends the process has the first error already.
  }
}

}  // namespace longspan
