#include "comm/mpi_communicator.h"

#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <utility>

#include "base/check.h"
#include "comm/message_communicator.h"
#include "comm/mpi_engine.h"

namespace longspan {
namespace {

class MpiWork : public Work::State {
 public:
  MpiWork(MpiEngine& engine, MpiEngine::TransferPointer transfer)
      : engine_(engine), transfer_(std::move(transfer)) {}

  bool done() override { return engine_.done(*transfer_); }
  void wait() override { engine_.wait(*transfer_); }
  void abandon() override { engine_.abandon(*transfer_); }

 private:
  MpiEngine& engine_;
  MpiEngine::TransferPointer transfer_;
};

class MpiCommunicator : public MessageCommunicator {
 public:
  MpiCommunicator(MpiEngine& engine, int64_t group, std::vector<int> ranks, int rank)
      : engine_(engine), group_(group), ranks_(std::move(ranks)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  std::string transport() const override { return "mpi"; }

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
    return Work(std::make_unique<MpiWork>(
        engine_, engine_.post_send(world_rank(destination), channel, tag, op, data)));
  }
  Work post_receive(int source, int64_t channel, int64_t tag, std::string_view op,
                    MutableBytes data) {
    return Work(std::make_unique<MpiWork>(
        engine_, engine_.post_receive({channel, world_rank(source), tag}, op, data)));
  }

  MpiEngine& engine_;
  const int64_t group_;
  const std::vector<int> ranks_;  // place in this group -> rank of the job
  const int rank_;
};

// All ranks of the parent take part, so that the new group's number is above all that any of them
// has used. Groups without a common rank may share a number.
std::unique_ptr<Communicator> MpiCommunicator::subgroup(const std::vector<int>& ranks,
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
  return std::make_unique<MpiCommunicator>(engine_, group, std::move(world_ranks), place);
}

bool world_exists = false;

}  // namespace

MpiSession::MpiSession() {
  int given = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &given) != MPI_SUCCESS) {
    throw UserError("MPI does not start; try 'mpirun -n 1 true' on this machine");
  }
  if (given < MPI_THREAD_SERIALIZED) {
    MPI_Finalize();
    throw UserError(text("this MPI library supports thread level ", given,
                         " only; longspan needs MPI_THREAD_SERIALIZED (", MPI_THREAD_SERIALIZED,
                         "): install Open MPI or MPICH built with threads"));
  }
}

MpiSession::~MpiSession() {
  if (std::uncaught_exceptions() > 0) end_job(3);
  MPI_Finalize();
}

int MpiSession::rank() const {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int MpiSession::size() const {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

void MpiSession::end_job(int exit_code) const {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::abort();  // MPI_Abort does not return
}

MpiWorld::MpiWorld(const MpiSession&, const MpiWorldOptions& options) {
  LONGSPAN_CHECK(!world_exists, "a process has one MPI world at a time");
  LONGSPAN_CHECK(options.stall_timeout_s > 0, "stall timeout ", options.stall_timeout_s, " s");
  engine_ = std::make_unique<MpiEngine>(options.stall_timeout_s, options.part_bytes);
  world_exists = true;
}

MpiWorld::~MpiWorld() {
  world_exists = false;
}

std::unique_ptr<Communicator> MpiWorld::communicator() {
  std::vector<int> ranks;
  for (int rank = 0; rank < engine_->size(); ++rank) ranks.push_back(rank);
  return std::make_unique<MpiCommunicator>(*engine_, 0, std::move(ranks), engine_->rank());
}

}  // namespace longspan
