// What each rank is doing: the engine's own status, and the questions and answers of a stall.
#include <algorithm>
#include <cstring>

#include "comm/message_engine.h"

namespace longspan {
namespace {

using namespace std::chrono_literals;

// A rank that has not answered a query by then is reported as silent; helpers answer within 20 ms.
constexpr auto kAnswerTime = 2s;

}  // namespace

std::vector<RankStatus> MessageEngine::ask_everybody(Lock& lock, const Goal& goal) {
  answers_.assign(static_cast<size_t>(size()), RankStatus{.kind = RankStatus::Kind::kSilent});
  for (int other = 0; other < size(); ++other) {
    if (other != rank()) wire_->send(other, {.kind = Envelope::Kind::kQuery}, {}, {});
  }
  const auto complete = [this] {
    return std::count_if(answers_.begin(), answers_.end(), [](const RankStatus& status) {
             return status.kind == RankStatus::Kind::kSilent;
           }) == 1;  // this rank's own
  };
  Backoff backoff;
  const auto deadline = Clock::now() + kAnswerTime;
  while (!complete() && !failed_ && Clock::now() < deadline) {
    pause(lock, backoff);
    progress(lock);
  }
  std::vector<RankStatus> statuses = answers_;
  statuses[static_cast<size_t>(rank())] = own_status(goal.awaits);
  return statuses;
}

RankStatus MessageEngine::own_status(const std::function<std::vector<int>()>& awaits) const {
  RankStatus status = status_;
  status.seconds = std::chrono::duration<double>(Clock::now() - status_since_).count();
  if (awaits) status.awaits = awaits();
  return status;
}

void MessageEngine::answer_query(const Lock&, int asker) {
  RankStatus status = own_status({});
  if (status.kind == RankStatus::Kind::kWaiting) status.awaits = awaited_;
  status.awaits.resize(std::min(status.awaits.size(), wire_->payload_limit_bytes() / sizeof(int)));
  wire_->send(asker,
              {.kind = Envelope::Kind::kStatus,
               .seconds = status.seconds,
               .status_kind = static_cast<int32_t>(status.kind)},
              status.text, std::as_bytes(std::span(status.awaits)));
}

void MessageEngine::read_status(const IncomingEnvelope& envelope) {
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

void MessageEngine::set_status(RankStatus::Kind kind, std::string_view text) {
  status_.kind = kind;
  status_.text = text;
  status_since_ = Clock::now();
}

void MessageEngine::set_activity(std::string_view op) {
  const Lock lock(mutex_);
  set_status(RankStatus::Kind::kActivity, op);
}

}  // namespace longspan
