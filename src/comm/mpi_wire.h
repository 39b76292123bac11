// Envelopes and bulk over MPI, on one private MPI communicator. Private to the MPI transport.
//
// Envelopes have tag 0 and are always listened for. Data tags are small numbers in use at this
// moment, far below the library's limit. Bulk is cut into parts, since MPI counts in 32 bits.
//
//   MessageEngine engine(std::make_unique<MpiWire>(part_bytes), ...);
//
// Threads: as wire.h says.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "comm/wire.h"

namespace longspan {

class MpiWire final : public Wire {
 public:
  explicit MpiWire(int64_t part_bytes);  // called by all ranks of the job together
  ~MpiWire() override;
  MpiWire(const MpiWire&) = delete;
  MpiWire& operator=(const MpiWire&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  size_t payload_limit_bytes() const override;
  void send(int destination, Envelope head, std::string_view text, ConstBytes payload) override;
  std::shared_ptr<Bulk> send_bulk(int destination, int data_tag, ConstBytes data) override;
  std::shared_ptr<Bulk> receive_bulk(int source, int data_tag, MutableBytes data) override;
  void cancel(const Bulk& bulk) override;
  int take_data_tag(int source) override;
  void return_data_tag(int source, int data_tag) override;
  std::vector<IncomingEnvelope> poll() override;
  bool idle() const override { return requests_.size() == 1; }  // the listener alone
  int64_t events() const override { return events_; }
  void close(bool together) override;

 private:
  struct Carried {
    std::shared_ptr<Bulk> bulk;       // or
    std::vector<std::byte> envelope;  // an outgoing one, alive until it is sent
  };

  void listen();
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
