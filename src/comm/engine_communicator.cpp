#include "comm/engine_communicator.h"

#include <utility>
#include <vector>

#include "base/check.h"
#include "comm/message_communicator.h"

namespace longspan {
namespace {

class EngineWork : public Work::State {
 public:
  EngineWork(MessageEngine& engine, MessageEngine::TransferPointer transfer)
      : engine_(engine), transfer_(std::move(transfer)) {}

  bool done() override { return engine_.done(*transfer_); }
  void wait() override { engine_.wait(*transfer_); }
  void abandon() override { engine_.abandon(*transfer_); }

 private:
  MessageEngine& engine_;
  MessageEngine::TransferPointer transfer_;
};

class EngineCommunicator : public MessageCommunicator {
 public:
  EngineCommunicator(MessageEngine& engine, int64_t group, std::vector<int> ranks, int rank,
                     std::string transport)
      : engine_(engine),
        group_(group),
        ranks_(std::move(ranks)),
        rank_(rank),
        transport_(std::move(transport)) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  std::string transport() const override { return transport_; }

  Work send(int destination, int64_t tag, std::string_view op, ConstBytes data) override {
    check_peer(destination, op);
    return post_send(destination, user_channel(group_), tag, op, data);
  }
  Work receive(int source, int64_t tag, std::string_view op, MutableBytes data) override {
    check_peer(source, op);
    return post_receive(source, user_channel(group_), tag, op, data);
  }

  std::unique_ptr<Communicator> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override;

  void activity(std::string_view op) override { engine_.set_activity(op); }
  void abort(std::string_view reason) override { engine_.fail(reason); }

 protected:
  DeviceMemory* device_memory() const override { return engine_.device_memory(); }
  Work send_collective(int destination, int64_t sequence, std::string_view op,
                       ConstBytes data) override {
    return post_send(destination, collective_channel(group_), sequence, op, data);
  }
  Work receive_collective(int source, int64_t sequence, std::string_view op,
                          MutableBytes data) override {
    return post_receive(source, collective_channel(group_), sequence, op, data);
  }

 private:
  int world_rank(int place) const { return ranks_[static_cast<size_t>(place)]; }
  Work post_send(int destination, int64_t channel, int64_t tag, std::string_view op,
                 ConstBytes data) {
    return Work(std::make_unique<EngineWork>(
        engine_, engine_.post_send(world_rank(destination), channel, tag, op, data)));
  }
  Work post_receive(int source, int64_t channel, int64_t tag, std::string_view op,
                    MutableBytes data) {
    return Work(std::make_unique<EngineWork>(
        engine_, engine_.post_receive({channel, world_rank(source), tag}, op, data)));
  }

  MessageEngine& engine_;
  const int64_t group_;
  const std::vector<int> ranks_;  // place in this group -> rank of the job
  const int rank_;
  const std::string transport_;
};

// All ranks of the parent take part, so that the new group's number is above all that any of them
// has used. Groups without a common rank may share a number.
std::unique_ptr<Communicator> EngineCommunicator::subgroup(const std::vector<int>& ranks,
                                                           std::string_view name) {
  const int place = place_in_subgroup(ranks, name);
  std::vector<int> leader_list = ranks;
  broadcast(0, std::as_writable_bytes(std::span(leader_list)), name);
  LONGSPAN_CHECK(leader_list == ranks, "subgroup '", name, "': rank ", rank_,
                 " lists other ranks than rank 0");
  std::vector<double> number{static_cast<double>(engine_.next_group())};
  all_reduce_max(number, name);
  const auto group = static_cast<int64_t>(number[0]);
  engine_.set_next_group(group + 1);
  if (place < 0) return nullptr;
  std::vector<int> world_ranks;
  for (const int rank : ranks) world_ranks.push_back(world_rank(rank));
  return std::make_unique<EngineCommunicator>(engine_, group, std::move(world_ranks), place,
                                              transport_);
}

}  // namespace

std::unique_ptr<Communicator> world_communicator(MessageEngine& engine, std::string transport) {
  std::vector<int> ranks;
  for (int rank = 0; rank < engine.size(); ++rank) ranks.push_back(rank);
  return std::make_unique<EngineCommunicator>(engine, 0, std::move(ranks), engine.rank(),
                                              std::move(transport));
}

}  // namespace longspan
