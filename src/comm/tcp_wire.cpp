#include "comm/tcp_wire.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "comm/tcp_connect.h"

namespace longspan {
namespace {

constexpr size_t kPartBytes = size_t{1} << 20;  // after each of which an envelope may pass
constexpr size_t kDiscardBytes = size_t{1} << 16;
constexpr auto kCloseTime = std::chrono::milliseconds(500);

}  // namespace

TcpWire::TcpWire(RendezvousStore& store, const std::string& name, int rank, int size,
                 double connect_timeout_s)
    : rank_(rank), peers_(static_cast<size_t>(size)), discarded_(kDiscardBytes) {
  const std::vector<int> sockets = connect_all(store, name, rank, size, connect_timeout_s);
  for (size_t other = 0; other < peers_.size(); ++other) peers_[other].socket = sockets[other];
}

TcpWire::~TcpWire() {
  for (const Peer& peer : peers_) {
    if (peer.socket >= 0) ::close(peer.socket);
  }
}

void TcpWire::send(int destination, Envelope head, std::string_view text, ConstBytes payload) {
  LONGSPAN_CHECK(payload.size() <= payload_limit_bytes(), "payload of ", payload.size(), " bytes");
  Peer& peer = at(destination);
  Outgoing frame{.head = {}, .envelope = pack(head, text, payload), .bytes = {}, .bulk = nullptr};
  frame.head.size_bytes = frame.envelope.size();
  peer.envelopes.push_back(std::move(frame));
  peer.envelopes.back().bytes = peer.envelopes.back().envelope;
  write_some(destination);
}

std::shared_ptr<Bulk> TcpWire::send_bulk(int destination, int data_tag, ConstBytes data) {
  const auto bulk = std::make_shared<Bulk>();
  bulk->progressed = std::chrono::steady_clock::now();
  for (size_t begin = 0; begin < data.size(); begin += kPartBytes) {
    const ConstBytes part = data.subspan(begin, std::min(kPartBytes, data.size() - begin));
    at(destination)
        .parts.push_back(
            {.head = {part.size(), data_tag, 0}, .envelope = {}, .bytes = part, .bulk = bulk});
    ++bulk->parts_left;
  }
  write_some(destination);
  return bulk;
}

std::shared_ptr<Bulk> TcpWire::receive_bulk(int source, int data_tag, MutableBytes data) {
  const auto bulk = std::make_shared<Bulk>();
  bulk->progressed = std::chrono::steady_clock::now();
  bulk->parts_left = data.empty() ? 0 : 1;
  if (!data.empty()) at(source).targets[data_tag] = {.bytes = data, .bulk = bulk};
  return bulk;
}

// Only after a failure, so the tags need no second life.
void TcpWire::cancel(const Bulk& bulk) {
  for (Peer& peer : peers_) {
    std::erase_if(peer.targets, [&bulk](auto& entry) {
      if (entry.second.bulk.get() != &bulk) return false;
      entry.second.bulk->parts_left = 0;
      return true;
    });
  }
}

int TcpWire::take_data_tag(int source) {
  std::set<int>& tags = at(source).data_tags;
  int tag = 1;
  for (const int used : tags) {
    if (used != tag) break;
    ++tag;
  }
  tags.insert(tag);
  return tag;
}

void TcpWire::return_data_tag(int source, int data_tag) {
  at(source).data_tags.erase(data_tag);
}

void TcpWire::lost(int rank, const char* what, int error) {
  Peer& peer = at(rank);
  ::close(std::exchange(peer.socket, -1));
  peer.envelopes.clear();
  peer.parts.clear();
  peer.current.reset();
  if (std::exchange(peer.left, true)) return;
  throw DistributedError(text("rank ", rank, " is gone: ", what,
                              error != 0 ? text(" (", std::strerror(error), ")") : "",
                              "; look at the output of its process"));
}

void TcpWire::write_some(int rank) {
  Peer& peer = at(rank);
  while (peer.socket >= 0) {
    if (!peer.current) {
      std::deque<Outgoing>& queue = peer.envelopes.empty() ? peer.parts : peer.envelopes;
      if (queue.empty()) return;
      peer.current = std::make_unique<Outgoing>(std::move(queue.front()));
      queue.pop_front();
      // Moving a vector keeps its bytes where they are.
    }
    Outgoing& frame = *peer.current;
    const size_t head_left = sizeof(FrameHead) - std::min(sizeof(FrameHead), frame.sent);
    const size_t body_sent = frame.sent - (sizeof(FrameHead) - head_left);
    iovec pieces[2] = {
        {reinterpret_cast<std::byte*>(&frame.head) + (sizeof(FrameHead) - head_left), head_left},
        {const_cast<std::byte*>(frame.bytes.data()) + body_sent, frame.bytes.size() - body_sent}};
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = 2;
    const ssize_t count = sendmsg(peer.socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return lost(rank, "its connection broke", errno);
    frame.sent += static_cast<size_t>(count);
    if (frame.bulk) frame.bulk->progressed = std::chrono::steady_clock::now();
    if (frame.sent < sizeof(FrameHead) + frame.bytes.size()) continue;
    if (frame.bulk) --frame.bulk->parts_left;
    ++events_;
    peer.current.reset();
  }
}

MutableBytes TcpWire::room_for_body(Peer& peer) {
  Incoming& incoming = peer.incoming;
  const size_t left = incoming.head.size_bytes - incoming.filled;
  if (incoming.head.data_tag == 0) {
    return MutableBytes(incoming.envelope).subspan(incoming.filled, left);
  }
  const auto target = peer.targets.find(incoming.head.data_tag);
  if (target == peer.targets.end()) {
    return MutableBytes(discarded_).first(std::min(left, discarded_.size()));
  }
  LONGSPAN_CHECK(left <= target->second.bytes.size() - target->second.filled, "a part of ", left,
                 " bytes for a buffer with ", target->second.bytes.size() - target->second.filled,
                 " left");
  return target->second.bytes.subspan(target->second.filled, left);
}

void TcpWire::read_some(int rank, std::vector<IncomingEnvelope>& arrived) {
  Peer& peer = at(rank);
  while (peer.socket >= 0) {
    Incoming& incoming = peer.incoming;
    const bool in_head = incoming.head_filled < sizeof(FrameHead);
    const MutableBytes room = in_head
                                  ? MutableBytes(incoming.head_bytes).subspan(incoming.head_filled)
                                  : room_for_body(peer);
    const ssize_t count = recv(peer.socket, room.data(), room.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return lost(rank, "its connection broke", errno);
    if (count == 0) return lost(rank, "its connection ended", 0);
    const auto got = static_cast<size_t>(count);
    if (in_head) {
      incoming.head_filled += got;
      if (incoming.head_filled < sizeof(FrameHead)) continue;
      std::memcpy(&incoming.head, incoming.head_bytes.data(), sizeof(FrameHead));
      if (incoming.head.data_tag == 0) {
        LONGSPAN_CHECK(incoming.head.size_bytes < (size_t{1} << 20), "an envelope of ",
                       incoming.head.size_bytes, " bytes");
        incoming.envelope.resize(incoming.head.size_bytes);
      }
    } else {
      incoming.filled += got;
      const auto target = peer.targets.find(incoming.head.data_tag);
      if (incoming.head.data_tag != 0 && target != peer.targets.end()) {
        target->second.filled += got;
        target->second.bulk->progressed = std::chrono::steady_clock::now();
      }
    }
    if (incoming.filled == incoming.head.size_bytes) finish_frame(rank, arrived);
  }
}

void TcpWire::finish_frame(int rank, std::vector<IncomingEnvelope>& arrived) {
  Peer& peer = at(rank);
  Incoming& incoming = peer.incoming;
  ++events_;
  if (incoming.head.data_tag == 0) {
    arrived.push_back(unpack(rank, incoming.envelope));
    const Envelope::Kind kind = arrived.back().head.kind;
    if (kind == Envelope::Kind::kGoodbye || kind == Envelope::Kind::kAbort) peer.left = true;
  } else if (const auto target = peer.targets.find(incoming.head.data_tag);
             target != peer.targets.end() && target->second.filled == target->second.bytes.size()) {
    target->second.bulk->parts_left = 0;
    peer.targets.erase(target);
  }
  incoming.head_filled = 0;
  incoming.filled = 0;
}

// What arrived before a connection broke is passed on first.
std::vector<IncomingEnvelope> TcpWire::poll() {
  std::vector<IncomingEnvelope> arrived;
  try {
    for (int other = 0; other < size(); ++other) {
      if (at(other).socket < 0) continue;
      read_some(other, arrived);
      write_some(other);
    }
  } catch (const DistributedError& error) {
    IncomingEnvelope news{.source = rank_, .head = {.kind = Envelope::Kind::kAbort}};
    news.text = error.what();
    arrived.push_back(std::move(news));
  }
  return arrived;
}

bool TcpWire::idle() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
    return peer.envelopes.empty() && peer.parts.empty() && !peer.current && peer.targets.empty();
  });
}

Wire::Sleeper TcpWire::sleeper() const {
  std::vector<pollfd> sockets;
  for (const Peer& peer : peers_) {
    if (peer.socket < 0) continue;
    const bool writes = peer.current || !peer.envelopes.empty() || !peer.parts.empty();
    const int wanted = writes ? POLLIN | POLLOUT : POLLIN;
    sockets.push_back({.fd = peer.socket, .events = static_cast<short>(wanted), .revents = 0});
  }
  return [sockets = std::move(sockets)](std::chrono::microseconds time) mutable {
    const timespec limit{.tv_sec = time.count() / 1'000'000,
                         .tv_nsec = time.count() % 1'000'000 * 1000};
    ppoll(sockets.data(), sockets.size(), &limit, nullptr);
  };
}

// A socket closed with unread bytes in it drops what it has sent: so first this side says that it
// is done, and then it listens until the other side has done the same.
void TcpWire::close(bool) {
  const auto end = std::chrono::steady_clock::now() + kCloseTime;
  for (Peer& peer : peers_) {
    if (peer.socket >= 0) shutdown(peer.socket, SHUT_WR);
  }
  for (Peer& peer : peers_) {
    while (peer.socket >= 0) {
      const ssize_t count = recv(peer.socket, discarded_.data(), discarded_.size(), MSG_DONTWAIT);
      if (count > 0) continue;
      if (count == 0 || (errno != EAGAIN && errno != EINTR)) break;
      if (std::chrono::steady_clock::now() >= end) break;
      pollfd entry{.fd = peer.socket, .events = POLLIN, .revents = 0};
      ::poll(&entry, 1, 20);
    }
    if (peer.socket >= 0) ::close(std::exchange(peer.socket, -1));
  }
}

}  // namespace longspan
