#include "comm/communicator.h"

#include <exception>

#include "base/check.h"

namespace longspan {

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    finish();
    state_ = std::move(other.state_);
  }
  return *this;
}

Work::~Work() {
  finish();
}

void Work::wait() {
  if (const auto state = std::move(state_)) state->wait();
}

void Work::finish() noexcept {
  const auto state = std::move(state_);
  if (!state) return;
  try {
    if (std::uncaught_exceptions() > 0) {
      state->abandon();
    } else {
      state->wait();
    }
  } catch (...) {
    // A destructor cannot report. A failed communicator throws again at its next operation.
  }
}

namespace {

// Waits in the order of the list.
class WorkList : public Work::State {
 public:
  explicit WorkList(std::vector<Work> list) : list_(std::move(list)) {}

  bool done() override {
    for (Work& work : list_) {
      if (!work.done()) return false;
    }
    return true;
  }
  void wait() override {
    for (Work& work : list_) work.wait();
  }
  void abandon() override { list_.clear(); }

 private:
  std::vector<Work> list_;
};

}  // namespace

Work Communicator::all_to_all(const std::vector<ConstBytes>& send,
                              const std::vector<MutableBytes>& receive, int64_t tag,
                              std::string_view op) {
  const auto ranks = static_cast<size_t>(size());
  const auto self = static_cast<size_t>(rank());
  LONGSPAN_CHECK(send.size() == ranks && receive.size() == ranks, op, ": ", send.size(),
                 " spans to send and ", receive.size(), " to receive, expected ", ranks);
  LONGSPAN_CHECK(send[self].empty() && receive[self].empty(), op, ": rank ", rank(), " keeps ",
                 send[self].size(), " bytes; rows that stay do not travel");
  // Each rank starts with its right neighbour, so that not all of them begin with rank 0.
  std::vector<IncomingMessage> incoming;
  std::vector<OutgoingMessage> outgoing;
  for (size_t step = 1; step < ranks; ++step) {
    const size_t source = (self + ranks - step) % ranks;
    if (receive[source].empty()) continue;
    incoming.push_back({static_cast<int>(source), tag, receive[source]});
  }
  for (size_t step = 1; step < ranks; ++step) {
    const size_t destination = (self + step) % ranks;
    if (send[destination].empty()) continue;
    outgoing.push_back({static_cast<int>(destination), tag, send[destination]});
  }
  return exchange(incoming, outgoing, op);
}

// Receives are posted first and waited for first: when the sends are waited for, their receives
// stand on the other side, and no send needs a copy.
Work Communicator::exchange(std::span<const IncomingMessage> incoming,
                            std::span<const OutgoingMessage> outgoing, std::string_view op) {
  std::vector<Work> list;
  for (const IncomingMessage& message : incoming) {
    list.push_back(receive(message.source, message.tag, op, message.data));
  }
  for (const OutgoingMessage& message : outgoing) {
    list.push_back(send(message.destination, message.tag, op, message.data));
  }
  if (list.empty()) return {};
  return Work(std::make_unique<WorkList>(std::move(list)));
}

void Communicator::check_peer(int peer, std::string_view op) const {
  LONGSPAN_CHECK(peer >= 0 && peer < size() && peer != rank(), op, ": rank ", rank(), " of ",
                 size(), " names rank ", peer, " as its peer");
}

void Communicator::check_root(int root, std::string_view op) const {
  LONGSPAN_CHECK(root >= 0 && root < size(), op, ": root ", root, " of ", size(), " ranks");
}

void Communicator::check_blocks(size_t whole, size_t block, std::string_view op) const {
  const auto ranks = static_cast<size_t>(size());
  LONGSPAN_CHECK(whole == ranks * block, op, ": ", whole, " elements, expected ", ranks,
                 " blocks of ", block);
}

int Communicator::place_in_subgroup(const std::vector<int>& ranks, std::string_view name) const {
  LONGSPAN_CHECK(!ranks.empty(), "subgroup '", name, "' has no ranks");
  std::vector<bool> listed(static_cast<size_t>(size()), false);
  int place = -1;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const int member = ranks[i];
    LONGSPAN_CHECK(member >= 0 && member < size(), "subgroup '", name, "' lists rank ", member,
                   " of ", size());
    LONGSPAN_CHECK(!listed[static_cast<size_t>(member)], "subgroup '", name, "' lists rank ",
                   member, " twice");
    listed[static_cast<size_t>(member)] = true;
    if (member == rank()) place = static_cast<int>(i);
  }
  return place;
}

}  // namespace longspan
