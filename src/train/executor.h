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

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "schedule/step_schedule.h"
#include "train/step_planner.h"

namespace longspan {

class ParameterStore;
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
  // Of the device that computes:
  double attention_s = 0;   // time in launch groups
  double exchange_s = 0;    // time in attention rounds: packing, and waiting for what has not come
  double collective_s = 0;  // time in weight gathers and gradient reductions
  // Bytes that buffers hold between forward and backward (without weights and gradients), when the
  // last forward has ended, and the most at any operation; 0 unless asked for.
  int64_t stored_bytes = 0;
  int64_t stored_bytes_peak = 0;
};

struct RunOptions {
  double loss_scale = 1;       // 1 / the step's global sum of loss weights
  bool keep_logits = false;    // evaluation schedules, for few tokens
  bool account_bytes = false;  // costs a walk over all buffers after each operation
};

class Executor {
 public:
  Executor(const TransformerModel& model, ParameterStore& store, Communicator& comm);
  ~Executor();

  StepTotals run(const StepSchedule& schedule, const std::vector<PlannedMicroBatch>& micro_batches,
                 const RunOptions& options);

 private:
  class Step;
  const TransformerModel& model_;
  ParameterStore& store_;
  Communicator& comm_;
};

}  // namespace longspan
