// What travels over MPI, and the requests that carry it. Private to the MPI transport.
//
// Two kinds of traffic on one private MPI communicator: *envelopes*, short self-describing notes
// that every rank always listens for (tag 0), and *bulk*, the bytes of long messages, which start
// only when the receiver has given its buffer and a data tag for them. So no data ever waits
// unexpected inside the MPI library, any 64-bit tag is exact (it travels in the envelope), and data
// tags are small numbers in use at this moment, far below the library's limit. Bulk is cut into
// parts, since MPI counts in 32 bits.
//
//   wire.send(peer, {.kind = Envelope::Kind::kClear, .data_tag = tag, .transfer = id}, "", {});
//   for (const IncomingEnvelope& envelope : wire.poll()) handle(envelope);
//
// Threads: one at a time (mpi_engine.h holds a lock), whichever it is.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
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
  int32_t text_bytes = 0;  // set by MpiWire::send
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

class MpiWire {
 public:
  explicit MpiWire(int64_t part_bytes);  // called by all ranks of the job together
  ~MpiWire();
  MpiWire(const MpiWire&) = delete;
  MpiWire& operator=(const MpiWire&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Longest payload that always fits into an envelope with a text.
  static size_t payload_limit_bytes();

  // A text that is too long is cut, the payload never.
  void send(int destination, Envelope head, std::string_view text, ConstBytes payload);
  std::shared_ptr<Bulk> send_bulk(int destination, int data_tag, ConstBytes data);
  std::shared_ptr<Bulk> receive_bulk(int source, int data_tag, MutableBytes data);
  // Asks the library to give up the parts that have not begun; poll() then sees them end.
  void cancel(const Bulk& bulk);
  int take_data_tag(int source);
  void return_data_tag(int source, int data_tag);

  // Moves what can be moved, and returns what arrived, in order.
  std::vector<IncomingEnvelope> poll();
  bool idle() const { return requests_.size() == 1; }  // the listener alone
  int64_t events() const { return events_; }           // completions so far
  // Ends the listening. `together`: all ranks do so and nothing is in flight. Otherwise what is
  // still in flight is left to the library.
  void close(bool together);

 private:
  struct Carried {
    std::shared_ptr<Bulk> bulk;       // or
    std::vector<std::byte> envelope;  // an outgoing one, alive until it is sent
  };

  void listen();
  IncomingEnvelope read_incoming(int source, size_t size_bytes);
  void check(int result, const char* call) const;
  template <typename Start>
  std::shared_ptr<Bulk> start_parts(size_t size_bytes, const Start& start);

  const int64_t part_bytes_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  int largest_tag_ = 0;
  std::vector<std::byte> incoming_;
  std::vector<MPI_Request> requests_;  // [0] listens
  std::vector<Carried> carried_;       // of requests_, same places
  std::vector<std::set<int>> tags_in_use_;
  int64_t events_ = 0;
};

}  // namespace longspan
