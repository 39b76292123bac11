#include "schedule/schedule_verifier.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/check.h"

namespace longspan {
namespace {

bool is_collective(OperationKind kind) {
  return kind == OperationKind::kGatherWeights || kind == OperationKind::kReduceGradients ||
         kind == OperationKind::kMix || kind == OperationKind::kExperts ||
         kind == OperationKind::kOptimizerStep;
}

// Buffers that several operations add to or work on; all others are written once in each life.
bool may_be_updated(BufferKind kind) {
  return kind == BufferKind::kGradients || kind == BufferKind::kContextGradient ||
         kind == BufferKind::kAttentionPass;
}

// What makes two ranks' collectives the same one.
auto collective_identity(const Operation& operation) {
  return std::tuple(operation.kind, operation.pass, operation.micro_batch, operation.layer,
                    operation.chunk);
}

// One attention pass of one round: which messages belong together.
using RoundKey =
    std::tuple<int, int, int, Pass, bool, int>;  // micro-batch, layer, chunk, pass, back, round

// Plays all ranks' lists. A rank runs on until it needs something that is not there yet.
class Player {
 public:
  Player(const ScheduleOptions& options, const std::vector<MicroBatchPlan>& micro_batches,
         const std::vector<StepSchedule>& schedules)
      : options_(options),
        micro_batches_(micro_batches),
        schedules_(schedules),
        at_(schedules.size(), 0) {}

  void play() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t rank = 0; rank < schedules_.size(); ++rank) {
        while (!finished(rank) && try_step(rank)) moved = true;
      }
    }
    for (size_t rank = 0; rank < schedules_.size(); ++rank) {
      LONGSPAN_CHECK(finished(rank), "rank ", rank,
                     " would wait for ever in: ", describe(current(rank)));
    }
  }

 private:
  const Operation& current(size_t rank) const { return schedules_[rank].operations[at_[rank]]; }
  bool finished(size_t rank) const { return at_[rank] == schedules_[rank].operations.size(); }

  bool try_step(size_t rank) {
    const Operation& operation = current(rank);
    if (is_collective(operation.kind)) return try_collective(rank, operation);
    const bool back = operation.kind == OperationKind::kAttentionBackStart ||
                      operation.kind == OperationKind::kAttentionBackFinish;
    const RoundKey key{
        operation.micro_batch, operation.layer, operation.chunk, operation.pass, back,
        operation.index};
    // A pass may run more than once under one key (two recomputes in context_only): the n-th finish
    // of a round belongs to the n-th start.
    const int own = static_cast<int>(rank);
    if (operation.kind == OperationKind::kAttentionOutStart ||
        operation.kind == OperationKind::kAttentionBackStart) {
      ++started_[key][own];
    }
    if (operation.kind == OperationKind::kAttentionOutFinish ||
        operation.kind == OperationKind::kAttentionBackFinish) {
      const int repetition = finished_[key][own] + 1;
      LONGSPAN_CHECK(started_[key][own] == repetition, "rank ", rank,
                     " finishes a round that it has not started: ", describe(operation));
      for (const int source : sources(own, operation, back)) {
        if (started_[key][source] < repetition) return false;
      }
      finished_[key][own] = repetition;
    }
    ++at_[rank];
    return true;
  }

  std::set<int> sources(int rank, const Operation& operation, bool back) const {
    const auto& chunks = *micro_batches_[static_cast<size_t>(operation.micro_batch)].chunks;
    const ChunkPlans& plans = chunks[static_cast<size_t>(operation.chunk)];
    const AttentionPlan& plan = operation.pass == Pass::kBackward ? plans.backward : plans.forward;
    const Round& round = (back ? plan.back : plan.out).at(static_cast<size_t>(operation.index));
    std::set<int> found;
    for (const Transfer& transfer : round.transfers) {
      if (transfer.destination == rank) found.insert(transfer.source);
    }
    return found;
  }

  // first, first + stride, ..., of `count` ranks: who takes part in a collective.
  struct Members {
    size_t first = 0;
    size_t stride = 1;
    size_t count = 1;
    bool operator==(const Members&) const = default;
  };

  Members members(size_t rank, const Operation& operation) const {
    const auto shards = static_cast<size_t>(options_.shard_group);
    const auto experts = static_cast<size_t>(options_.expert_group);
    const bool of_weights = operation.kind == OperationKind::kGatherWeights ||
                            operation.kind == OperationKind::kReduceGradients;
    if (operation.kind == OperationKind::kExperts) return {rank / experts * experts, 1, experts};
    if (!of_weights) return {0, 1, schedules_.size()};
    if (operation.layer <= final_unit(options_.num_layers))
      return {rank / shards * shards, 1, shards};
    if (shards < experts) return {rank, experts, 1};
    return {rank / shards * shards + rank % experts, experts, shards / experts};
  }

  bool try_collective(size_t rank, const Operation& operation) {
    const Members group = members(rank, operation);
    const size_t end = group.first + group.count * group.stride;
    for (size_t peer = group.first; peer < end; peer += group.stride) {
      if (finished(peer)) {
        throw InternalError(text("rank ", peer, " has no partner for: ", describe(operation)));
      }
      const Operation& peer_operation = current(peer);
      if (!is_collective(peer_operation.kind)) return false;
      // The peer may still have collectives of other groups to do.
      if (members(peer, peer_operation) != group) return false;
      LONGSPAN_CHECK(collective_identity(peer_operation) == collective_identity(operation), "rank ",
                     rank, " is in: ", describe(operation), "; rank ", peer,
                     " of its group is in: ", describe(peer_operation));
    }
    for (size_t peer = group.first; peer < end; peer += group.stride) ++at_[peer];
    return true;
  }

  const ScheduleOptions& options_;
  const std::vector<MicroBatchPlan>& micro_batches_;
  const std::vector<StepSchedule>& schedules_;
  std::vector<size_t> at_;
  std::map<RoundKey, std::map<int, int>> started_;  // how often, by rank
  std::map<RoundKey, std::map<int, int>> finished_;
};

}  // namespace

void verify_buffer_lives(const StepSchedule& schedule) {
  std::map<BufferKey, int> last_writer;
  const auto where = [&](const Operation& operation) {
    return text("rank ", schedule.rank, ", ", describe(operation));
  };
  for (size_t idx = 0; idx < schedule.operations.size(); ++idx) {
    const Operation& operation = schedule.operations[idx];
    std::set<int> expected_waits;
    for (const BufferKey& key : operation.reads) {
      const auto writer = last_writer.find(key);
      LONGSPAN_CHECK(writer != last_writer.end(), where(operation), " reads ", describe(key),
                     ", which is not alive");
      expected_waits.insert(writer->second);
    }
    for (const BufferKey& key : operation.writes) {
      const auto writer = last_writer.find(key);
      if (writer == last_writer.end()) continue;
      LONGSPAN_CHECK(may_be_updated(key.kind), where(operation), " writes ", describe(key),
                     ", which is still alive");
      expected_waits.insert(writer->second);
    }
    const std::set<int> waits(operation.waits_for.begin(), operation.waits_for.end());
    LONGSPAN_CHECK(waits == expected_waits, where(operation),
                   " does not wait for exactly the last writers of its buffers");
    for (const BufferKey& key : operation.writes) last_writer[key] = static_cast<int>(idx);
    for (const BufferKey& key : operation.drops) {
      LONGSPAN_CHECK(last_writer.erase(key) == 1, where(operation), " drops ", describe(key),
                     ", which is not alive");
    }
  }
  LONGSPAN_CHECK(last_writer.empty(), "rank ", schedule.rank, " never drops ",
                 describe(last_writer.begin()->first));
}

void verify_schedules(const ScheduleOptions& options,
                      const std::vector<MicroBatchPlan>& micro_batches,
                      const std::vector<StepSchedule>& schedules) {
  for (size_t rank = 0; rank < schedules.size(); ++rank) {
    LONGSPAN_CHECK(schedules[rank].rank == static_cast<int>(rank), "schedule ", rank,
                   " is of rank ", schedules[rank].rank);
    verify_buffer_lives(schedules[rank]);
  }
  Player(options, micro_batches, schedules).play();
}

}  // namespace longspan
