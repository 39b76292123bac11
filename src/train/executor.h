// Interprets a step schedule on one rank: the first page to read of a running step.
//
// The schedule (schedule/step_schedule.h) says what happens in which order; the executor looks up
// the buffers that an operation names, runs it, stores the results and drops what the operation
// drops. It decides nothing.
//
//   Executor executor(model, store, comm, {});
//   const StepTotals totals = executor.run(schedule, micro_batches, {.loss_scale = 1 /
//   weight_sum});
//
// A training run leaves the gradients in the ParameterStore; the caller then calls its step(). An
// evaluation schedule fills `token_losses`. A piece without tokens costs nothing: its segments are
// skipped.
//
// Threads: one executor per rank, on that rank's thread; it uses the rank's communicator.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "schedule/step_schedule.h"
#include "train/step_planner.h"

namespace longspan {

class BesideQueue;
class ParameterStore;
class SequenceMixes;
class StepTrace;
class TransformerModel;

struct StepTotals {
  double weighted_loss_sum = 0;  // this rank's tokens; read back when all work is queued
  // Evaluation schedules: (micro-batch, line rows, loss of each row's prediction) of this rank's
  // pieces.
  struct TokenLosses {
    int micro_batch = 0;
    Range line;
    std::vector<double> losses;
    std::vector<double> logits;  // [rows, vocabulary], if asked for
  };
  std::vector<TokenLosses> token_losses;
  struct Choices {
    Range line;
    int layer = 0;
    at::Tensor ids;  // int32 [rows, chosen], in host memory
  };
  std::vector<Choices> pools;    // if asked for
  std::vector<Choices> experts;  // if asked for
  // By layer with experts: how many of this rank's tokens chose each of them in the first forward.
  std::map<int, std::vector<int64_t>> expert_loads;
  // Of the device that computes:
  double attention_s = 0;  // time in launch groups, and in mixes with their exchanges
  // Time in attention rounds (packing, and waiting for what has not come) and in experts.
  double exchange_s = 0;
  // Time of weight gathers and gradient reductions on their own queue, beside the rest.
  double collective_s = 0;
  // Bytes that buffers hold between forward and backward (without weights and gradients), when the
  // last forward has ended, and the most at any operation; 0 unless asked for.
  int64_t stored_bytes = 0;
  int64_t stored_bytes_peak = 0;
};

// What a first forward chose, or is to choose, in one micro-batch: by layer, for all tokens of the
// line.
struct StepChoices {
  std::map<int, at::Tensor> pools;    // int32 [tokens, pools], ascending, -1 behind the last
  std::map<int, at::Tensor> experts;  // int32 [tokens, experts of a token], ascending
};

// Tokens times experts that travel at once unless a run says otherwise (experts/expert_dispatch.h).
inline constexpr int64_t kExpertPairsPerChunk = 16384;

struct RunOptions {
  double loss_scale = 1;     // 1 / the step's global sum of loss weights
  bool keep_logits = false;  // evaluation schedules, for few tokens
  int64_t max_expert_pairs_per_chunk = kExpertPairsPerChunk;
  // Of a step of one micro-batch; layers that it does not name choose for themselves.
  const StepChoices* given_choices = nullptr;
  bool keep_choices = false;   // this rank's rows, in StepTotals::pools and experts
  StepTrace* trace = nullptr;  // gets the times of all operations
  bool account_bytes = false;  // costs a walk over all buffers after each operation
};

class Executor {
 public:
  // Called by all ranks.
  Executor(const TransformerModel& model, ParameterStore& store, Communicator& comm);
  ~Executor();

  StepTotals run(const StepSchedule& schedule, const std::vector<PlannedMicroBatch>& micro_batches,
                 const RunOptions& options);

 private:
  const TransformerModel& model_;
  ParameterStore& store_;
  Communicator& comm_;
  std::unique_ptr<const SequenceMixes> mixes_;
  std::unique_ptr<BesideQueue> collective_queue_;  // for weights and gradients
  std::unique_ptr<Communicator> expert_comm_;      // null: each rank has all experts
};

}  // namespace longspan
