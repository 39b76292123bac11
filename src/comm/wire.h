// What travels between two processes, whatever carries it: the seam between the message engine and
// MPI (mpi_wire.h) or sockets (tcp_wire.h).
//
// Two kinds of traffic: *envelopes*, short self-describing notes that every rank always listens
// for, and *bulk*, the bytes of long messages, which start only when the receiver has given its
// buffer and a data tag for them. So no data waits unexpected, and any 64-bit tag is exact: it
// travels in the envelope.
//
//   wire.send(peer, {.kind = Envelope::Kind::kClear, .data_tag = tag, .transfer = id}, "", {});
//   for (const IncomingEnvelope& envelope : wire.poll()) handle(envelope);
//
// Threads: one at a time (message_engine.h holds a lock), whichever it is; what sleeper() returned
// is called without the lock.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace longspan {

struct Envelope {
  enum class Kind : int32_t {
    kMessage,  // a short message, whole, in the payload
    kRequest,  // a long message waits for its receive
    kClear,    // ... which is there: send the bulk with data_tag
    kAbort,    // the text says why
    kQuery,    // what are you doing?
    kStatus,   // the answer: status_kind, seconds, the text, the awaited ranks in the payload
    kGoodbye,  // this rank will send nothing more
  };
  Kind kind = Kind::kMessage;
  int32_t data_tag = 0;
  int64_t channel = 0;
  int64_t tag = 0;
  int64_t size_bytes = 0;
  int64_t transfer = 0;  // the sender's number of a long message
  double seconds = 0;
  int32_t status_kind = 0;
  int32_t on_device = 0;   // of a request: the bytes lie there
  int32_t text_bytes = 0;  // set by pack()
};

struct IncomingEnvelope {
  int source = 0;
  Envelope head;
  std::string text;
  std::vector<std::byte> payload;
};

// The parts of one long message in flight.
struct Bulk {
  int64_t parts_left = 0;
  std::chrono::steady_clock::time_point progressed;
};

// The bytes of an envelope that has the text and the payload behind it.
std::vector<std::byte> pack(Envelope head, std::string_view text, ConstBytes payload);
IncomingEnvelope unpack(int source, ConstBytes bytes);

class Wire {
 public:
  virtual ~Wire() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Longest payload that always fits into an envelope with a text.
  virtual size_t payload_limit_bytes() const = 0;

  // A text that is too long is cut, the payload never.
  virtual void send(int destination, Envelope head, std::string_view text, ConstBytes payload) = 0;
  virtual std::shared_ptr<Bulk> send_bulk(int destination, int data_tag, ConstBytes data) = 0;
  virtual std::shared_ptr<Bulk> receive_bulk(int source, int data_tag, MutableBytes data) = 0;
  // Gives up what has not begun; poll() then sees it end.
  virtual void cancel(const Bulk& bulk) = 0;
  virtual int take_data_tag(int source) = 0;
  virtual void return_data_tag(int source, int data_tag) = 0;

  // Moves what can be moved, and returns what arrived, in order.
  virtual std::vector<IncomingEnvelope> poll() = 0;
  virtual bool idle() const = 0;       // nothing of this rank is under way
  virtual int64_t events() const = 0;  // completions so far
  // Sleeps that long, or until something moves, where the carrier can tell.
  using Sleeper = std::function<void(std::chrono::microseconds)>;
  virtual Sleeper sleeper() const;
  virtual bool wakes_sleepers() const { return false; }
  // A process that leaves looks dead to the others: it must have passed on why.
  virtual bool shows_who_leaves() const { return false; }
  // Ends the listening. `together`: all ranks do so and nothing is in flight. Otherwise what is
  // still in flight is left to the carrier.
  virtual void close(bool together) = 0;
};

}  // namespace longspan
