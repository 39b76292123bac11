// Envelopes and bulk over TCP: a connection between each two processes of the job. Private to the
// TCP transport; tcp_world.h is the public header.
//
// A connection carries frames: a head of 16 bytes, then an envelope, or a part of the bulk with the
// data tag of the head. Envelopes go before parts that wait, so news of a failure passes long
// messages. Connections are made as the ranks say in the rendezvous store where they listen; each
// side shows the job's number, so that a stranger is turned away. A connection that ends before its
// rank has said goodbye means that the process is gone, and the others learn it at once.
//
//   MessageEngine engine(std::make_unique<TcpWire>(store, "first run", rank, size), ...);
//
// Hosts must have the same byte order. Threads: as wire.h says.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "comm/rendezvous.h"
#include "comm/wire.h"

namespace longspan {

class TcpWire final : public Wire {
 public:
  // Called by all processes together, with the same name; `connect_timeout_s` for the slowest.
  TcpWire(RendezvousStore& store, const std::string& name, int rank, int size,
          double connect_timeout_s);
  ~TcpWire() override;
  TcpWire(const TcpWire&) = delete;
  TcpWire& operator=(const TcpWire&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  size_t payload_limit_bytes() const override { return size_t{1} << 15; }
  void send(int destination, Envelope head, std::string_view text, ConstBytes payload) override;
  std::shared_ptr<Bulk> send_bulk(int destination, int data_tag, ConstBytes data) override;
  std::shared_ptr<Bulk> receive_bulk(int source, int data_tag, MutableBytes data) override;
  void cancel(const Bulk& bulk) override;
  int take_data_tag(int source) override;
  void return_data_tag(int source, int data_tag) override;
  std::vector<IncomingEnvelope> poll() override;
  bool idle() const override;
  int64_t events() const override { return events_; }
  Sleeper sleeper() const override;
  bool wakes_sleepers() const override { return true; }
  bool shows_who_leaves() const override { return true; }
  void close(bool together) override;

 private:
  struct FrameHead {
    uint64_t size_bytes = 0;
    int32_t data_tag = 0;  // 0: an envelope
    int32_t reserved = 0;
  };
  // What is being sent or received: a head, then bytes of ours or of the user's.
  struct Outgoing {
    FrameHead head;
    std::vector<std::byte> envelope;
    ConstBytes bytes;
    std::shared_ptr<Bulk> bulk;
    size_t sent = 0;  // head included
  };
  struct Target {
    MutableBytes bytes;
    std::shared_ptr<Bulk> bulk;
    size_t filled = 0;
  };
  struct Incoming {
    std::array<std::byte, sizeof(FrameHead)> head_bytes{};
    FrameHead head;
    size_t head_filled = 0;
    size_t filled = 0;
    std::vector<std::byte> envelope;
  };
  struct Peer {
    int socket = -1;
    std::deque<Outgoing> envelopes;
    std::deque<Outgoing> parts;
    std::unique_ptr<Outgoing> current;
    Incoming incoming;
    std::map<int, Target> targets;  // by data tag
    std::set<int> data_tags;
    bool left = false;  // has said goodbye, or its failure is known
  };

  Peer& at(int rank) { return peers_[static_cast<size_t>(rank)]; }
  void write_some(int rank);
  void read_some(int rank, std::vector<IncomingEnvelope>& arrived);
  void finish_frame(int rank, std::vector<IncomingEnvelope>& arrived);
  MutableBytes room_for_body(Peer& peer);
  void lost(int rank, const char* what, int error);

  const int rank_;
  std::vector<Peer> peers_;
  std::vector<std::byte> discarded_;  // what nobody wants any more is read into
  int64_t events_ = 0;
};

}  // namespace longspan
