#include "device/tcp_store.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <cstdint>
#include <string>

#include "base/error.h"

namespace longspan {
namespace {

// The address that this host has on the way to the master.
std::string address_towards(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found)) {
    throw UserError(text("environment: MASTER_ADDR='", host, "': ", gai_strerror(error),
                         "; give the name or address of rank 0's host"));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, freeaddrinfo);
  const int number = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage own{};
  socklen_t own_size = sizeof(own);
  char name[NI_MAXHOST] = {};
  // A datagram socket is connected without a word on the wire.
  const bool known = number >= 0 && connect(number, found->ai_addr, found->ai_addrlen) == 0 &&
                     getsockname(number, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
                     getnameinfo(reinterpret_cast<sockaddr*>(&own), own_size, name, sizeof(name),
                                 nullptr, 0, NI_NUMERICHOST) == 0;
  if (number >= 0) close(number);
  if (!known) {
    throw UserError(text("environment: MASTER_ADDR='", host,
                         "': this host has no way there; give an address of rank 0's host that "
                         "all hosts reach"));
  }
  return name;
}

class TcpRendezvous final : public RendezvousStore {
 public:
  TcpRendezvous(const LaunchInfo& launch, double timeout_s)
      : own_address_(address_towards(launch.master_address, launch.master_port)),
        place_(text("MASTER_ADDR=", launch.master_address, ", MASTER_PORT=", launch.master_port)) {
    const EnvironmentLookup environment = process_environment();
    prefix_ = text("longspan/", environment("TORCHELASTIC_RESTART_COUNT").value_or("0"), "/");
    const bool agent_serves = environment("TORCHELASTIC_USE_AGENT_STORE") == "True";
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(launch.master_port);
    options.isServer = launch.rank == 0 && !agent_serves;
    options.waitWorkers = false;
    options.timeout = std::chrono::milliseconds(static_cast<int64_t>(1000 * timeout_s));
    try {
      store_ = c10::make_intrusive<c10d::TCPStore>(launch.master_address, options);
    } catch (const std::exception& error) {
      throw UserError(text("rank ", launch.rank, " cannot ", options.isServer ? "serve" : "reach",
                           " the rendezvous at ", place_, ": ", first_line(error.what())));
    }
  }

  void set(const std::string& key, const std::string& value) override {
    call(key,
         [&] { store_->set(prefix_ + key, std::vector<uint8_t>(value.begin(), value.end())); });
  }
  std::string get(const std::string& key) override {
    std::string value;
    call(key, [&] {
      const std::vector<uint8_t> bytes = store_->get(prefix_ + key);
      value.assign(bytes.begin(), bytes.end());
    });
    return value;
  }
  std::string own_address() const override { return own_address_; }

 private:
  static std::string first_line(const std::string& message) {
    return message.substr(0, message.find('\n'));
  }
  template <typename Call>
  void call(const std::string& key, const Call& use) const {
    try {
      use();
    } catch (const std::exception& error) {
      throw UserError(text("rendezvous at ", place_, ", '", key, "': ", first_line(error.what()),
                           ". All processes must be started together; look at the output of the "
                           "others"));
    }
  }

  const std::string own_address_;
  const std::string place_;
  std::string prefix_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

}  // namespace

std::unique_ptr<RendezvousStore> tcp_store(const LaunchInfo& launch, double timeout_s) {
  if (launch.master_port < 1 || launch.master_port > 65535) {
    throw UserError(text("environment: MASTER_PORT=", launch.master_port,
                         " is no port; choose one from 1 to 65535"));
  }
  return std::make_unique<TcpRendezvous>(launch, timeout_s);
}

}  // namespace longspan
