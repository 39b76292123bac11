#include "comm/tcp_connect.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "base/error.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;

// What a caller shows first.
struct Card {
  uint64_t job = 0;
  int64_t rank = 0;
};

std::string problem(const char* what, int error) {
  return text(what, ": ", std::strerror(error));
}

// Closes the socket unless it is handed on.
class Socket {
 public:
  explicit Socket(int number) : number_(number) {}
  ~Socket() {
    if (number_ >= 0) close(number_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int get() const { return number_; }
  int hand_on() { return std::exchange(number_, -1); }

 private:
  int number_;
};

class Connector {
 public:
  Connector(int rank, double timeout_s)
      : rank_(rank),
        end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                std::chrono::duration<double>(timeout_s))) {}

  // "address port" of the listening socket.
  std::string listen_on(const std::string& address) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST;
    addrinfo* found = nullptr;
    if (const int error = getaddrinfo(address.c_str(), "0", &hints, &found)) {
      throw UserError(text("rank ", rank_, ": own address '", address, "': ", gai_strerror(error)));
    }
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, freeaddrinfo);
    listener_ = std::make_unique<Socket>(
        socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_storage own{};
    socklen_t own_size = sizeof(own);
    if (listener_->get() < 0 || bind(listener_->get(), found->ai_addr, found->ai_addrlen) != 0 ||
        listen(listener_->get(), SOMAXCONN) != 0 ||
        getsockname(listener_->get(), reinterpret_cast<sockaddr*>(&own), &own_size) != 0) {
      throw UserError(
          text("rank ", rank_, " cannot listen on ", address, ", ", problem("system says", errno)));
    }
    char port[NI_MAXSERV] = {};
    getnameinfo(reinterpret_cast<sockaddr*>(&own), own_size, nullptr, 0, port, sizeof(port),
                NI_NUMERICSERV);
    return text(address, " ", port);
  }

  int call(int other, const std::string& place, uint64_t job) {
    const size_t space = place.rfind(' ');
    const std::string address = place.substr(0, space);
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    if (space == std::string::npos ||
        getaddrinfo(address.c_str(), place.c_str() + space + 1, &hints, &found) != 0) {
      throw UserError(text("rank ", rank_, ": rank ", other, " says it listens on '", place, "'"));
    }
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, freeaddrinfo);
    Socket made(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (made.get() < 0 || connect(made.get(), found->ai_addr, found->ai_addrlen) != 0) {
      throw UserError(text("rank ", rank_, " cannot reach rank ", other, " at ", place, ", ",
                           problem("system says", errno),
                           ". MASTER_ADDR must be an address that all hosts reach each other by, "
                           "and no firewall may stand between them"));
    }
    const Card card{job, rank_};
    if (write(made.get(), &card, sizeof(card)) != static_cast<ssize_t>(sizeof(card))) {
      throw UserError(
          text("rank ", rank_, ": rank ", other, " hung up, ", problem("system says", errno)));
    }
    return made.hand_on();
  }

  // The rank that called, and its socket; strangers are turned away.
  std::pair<int, int> answer(uint64_t job, const std::vector<int>& sockets) {
    while (true) {
      wait_readable(listener_->get(), sockets);
      Socket made(accept4(listener_->get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (made.get() < 0) continue;
      Card card;
      const timeval patience{.tv_sec = 5, .tv_usec = 0};
      setsockopt(made.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
      const ssize_t got = recv(made.get(), &card, sizeof(card), MSG_WAITALL);
      const bool known = got == static_cast<ssize_t>(sizeof(card)) && card.job == job &&
                         card.rank > rank_ && card.rank < std::ssize(sockets) &&
                         sockets[static_cast<size_t>(card.rank)] < 0;
      if (known) return {static_cast<int>(card.rank), made.hand_on()};
    }
  }

 private:
  void wait_readable(int number, const std::vector<int>& sockets) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now());
    pollfd entry{.fd = number, .events = POLLIN, .revents = 0};
    const int milliseconds = static_cast<int>(std::clamp<int64_t>(left.count(), 0, 3'600'000));
    if (poll(&entry, 1, milliseconds) > 0) return;
    if (Clock::now() < end_) return;
    std::string missing;
    for (int other = rank_ + 1; other < static_cast<int>(sockets.size()); ++other) {
      if (sockets[static_cast<size_t>(other)] < 0) missing += text(" ", other);
    }
    throw UserError(text("rank ", rank_, " waited for these ranks, and they did not come:", missing,
                         ". Look at their output; all must be started together"));
  }

  const int rank_;
  const Clock::time_point end_;
  std::unique_ptr<Socket> listener_;
};

void make_ready(int number) {
  const int one = 1;
  setsockopt(number, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  const timeval none{};
  setsockopt(number, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof(none));
  fcntl(number, F_SETFL, fcntl(number, F_GETFL) | O_NONBLOCK);
}

uint64_t job_number(RendezvousStore& store, const std::string& key, int rank) {
  if (rank == 0) {
    uint64_t job = 0;
    if (getrandom(&job, sizeof(job), 0) != static_cast<ssize_t>(sizeof(job))) {
      job = static_cast<uint64_t>(Clock::now().time_since_epoch().count());
    }
    store.set(key, std::to_string(job));
  }
  const std::string value = store.get(key);
  return std::strtoull(value.c_str(), nullptr, 10);
}

}  // namespace

std::vector<int> connect_all(RendezvousStore& store, const std::string& name, int rank, int size,
                             double timeout_s) {
  std::vector<int> sockets(static_cast<size_t>(size), -1);
  if (size == 1) return sockets;
  try {
    Connector connector(rank, timeout_s);
    const uint64_t job = job_number(store, name + "/job", rank);
    const auto place_of = [&name](int other) { return text(name, "/rank ", other); };
    store.set(place_of(rank), connector.listen_on(store.own_address()));
    for (int other = 0; other < rank; ++other) {
      sockets[static_cast<size_t>(other)] = connector.call(other, store.get(place_of(other)), job);
    }
    for (int calls = rank + 1; calls < size; ++calls) {
      const auto [other, number] = connector.answer(job, sockets);
      sockets[static_cast<size_t>(other)] = number;
    }
  } catch (...) {
    for (const int number : sockets) {
      if (number >= 0) close(number);
    }
    throw;
  }
  for (const int number : sockets) {
    if (number >= 0) make_ready(number);
  }
  return sockets;
}

}  // namespace longspan
