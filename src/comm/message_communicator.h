// Collectives made of messages, for transports that only move bytes between two ranks.
//
// Why not the transport's own: every wait goes through one place that watches for stalls and names
// rank, operation and peer; and sums have our order (rank 0 first), so all ranks and all transports
// give the same bits.
//
//   class MpiCommunicator : public MessageCommunicator { ... };   // adds send, receive, subgroup
//   ...
//
// Sums are formed where their result belongs: each rank receives its block from every other rank,
// two at a time, and adds them in rank order. Room needed: three blocks; on a device, where
// messages run beside each other, a block for each rank. Threads: as Communicator.
#pragma once

#include "comm/communicator.h"
#include "comm/device_memory.h"

namespace longspan {

class MessageCommunicator : public Communicator {
 public:
  void barrier(std::string_view op) override;
  void broadcast(int root, MutableBytes data, std::string_view op) override;
  void all_gather(ConstBytes own, MutableBytes gathered, std::string_view op) override;
  void reduce_scatter(std::span<const float> input, std::span<float> own,
                      std::string_view op) override;
  void reduce_scatter(std::span<const double> input, std::span<double> own,
                      std::string_view op) override;
  void all_reduce_sum(std::span<double> values, std::string_view op) override;
  void all_reduce_max(std::span<double> values, std::string_view op) override;

 protected:
  // Of the device whose memory the messages may lie in; null: there is host memory only.
  virtual DeviceMemory* device_memory() const { return nullptr; }
  // Messages that no user message can match. `sequence` numbers the collectives of the
  // communicator.
  virtual Work send_collective(int destination, int64_t sequence, std::string_view op,
                               ConstBytes data) = 0;
  virtual Work receive_collective(int source, int64_t sequence, std::string_view op,
                                  MutableBytes data) = 0;

 private:
  template <typename T, typename Combine>
  void combine_blocks(const std::vector<std::span<const T>>& blocks, std::span<T> own,
                      std::string_view op, const Combine& combine);
  bool on_device(const void* address) const {
    return device_memory() && device_memory()->owns(address);
  }
  template <typename T>
  void sum_blocks_on_device(const std::vector<std::span<const T>>& blocks, std::span<T> own,
                            std::string_view op);
  template <typename T>
  void reduce_block(std::span<const T> input, std::span<T> own, std::string_view op);
  template <typename Combine>
  void all_reduce(std::span<double> values, std::string_view op, const Combine& combine);
  void copy_own(MutableBytes target, ConstBytes own);
  void gather_blocks(const std::vector<MutableBytes>& blocks, std::string_view op);

  int64_t sequence_ = 0;
};

}  // namespace longspan
