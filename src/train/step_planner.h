// What the steps of a run compute: documents packed, laid out and planned, one step ahead of the
// one that runs.
//
// Why apart from the trainer: everything here is the same on every rank, so the ranks of one
// process share one planner, and the next step is prepared on a thread of its own while the current
// one computes.
//
//   StepPlanner planner(source, options, cursor, first_step);
//   std::shared_ptr<const PlannedStep> step = planner.step(first_step);   // the same object for
//   all ranks
//
// Inside a micro-batch documents are put in the order for which chunks have like attention work
// (planner/document_order.h); which documents it holds is the packer's business alone.
//
// Pure functions of source, options and cursor: no clock, no rank decides anything. Any thread may
// call step(); it keeps the last few steps only, so ranks must not be further apart than that (they
// meet in every step). An error of the source or the planner is thrown in step() of the step
// concerned, on every rank.
#pragma once

#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "data/document_source.h"
#include "data/micro_batch.h"
#include "data/packer.h"
#include "layout/token_layout.h"
#include "planner/attention_plan.h"
#include "planner/attention_planner.h"
#include "planner/planner_scratch.h"

namespace longspan {

// A micro-batch with its place on chunks x ranks and its attention plans.
struct PlannedMicroBatch {
  MicroBatch data;
  TokenLayout layout;
  std::vector<ChunkPlans> plans;
};

struct PlannedStep {
  std::vector<PlannedMicroBatch> micro_batches;
  double loss_weight_sum = 0;
  int64_t tokens = 0;
  int64_t documents = 0;
  int64_t longest_document_tokens = 0;
  std::vector<int64_t> document_tokens;  // of each document
  DataCursor cursor_after;               // where the step after this one begins
  double fill_percent = 0;               // of the epoch's packing
  // Of the forward plans: worst chunk's max over mean of predicted attention work over servers, as
  // planned and if no query moved.
  double imbalance = 1;
  double home_imbalance = 1;
  int64_t sent_rows_max = 0;  // most rows that one rank sends in the out legs of one chunk
  double data_s = 0;
  double plan_s = 0;
};

struct StepPlannerOptions {
  PackOptions pack;
  int64_t micro_batches_per_step = 1;
  int64_t vocabulary_size = 0;
  int chunks = 1;
  // Token share of each rank; a dedicated server has share 0, and its clients speed 0 in `costs`.
  std::vector<double> token_shares = {1.0};
  // What tasks and exchange cost; as it stands, one rank that is alone.
  PlanningCosts costs = alike_costs(1);
  AttentionPlannerOptions planner;
  bool core_attention = true;  // false: no layer runs plans, and none are made but the home plan's
};

// Lays a micro-batch out and plans it; verifies the plans in debug builds (LONGSPAN_VERIFY).
// `scratch`: as of plan_attention.
PlannedMicroBatch plan_micro_batch(MicroBatch data, const StepPlannerOptions& options,
                                   PlannerScratch* scratch = nullptr);

class StepPlanner {
 public:
  // `source` must outlive the planner.
  StepPlanner(const DocumentSource& source, const StepPlannerOptions& options,
              const DataCursor& cursor, int64_t first_step);
  ~StepPlanner();

  // Steps are asked for in order, by each rank once.
  std::shared_ptr<const PlannedStep> step(int64_t step);
  // Packing of the epoch that the next step begins in, for the log.
  PackReport pack_report();

 private:
  using Result = std::shared_future<std::shared_ptr<const PlannedStep>>;
  void prepare(int64_t step);
  std::shared_ptr<const PlannedStep> make_step();

  const DocumentSource& source_;
  const StepPlannerOptions options_;
  std::mutex mutex_;
  std::mutex packer_mutex_;
  Packer packer_;
  PlannerScratch scratch_;  // of the one step that is being made
  int64_t next_to_prepare_;
  std::map<int64_t, Result> steps_;
};

}  // namespace longspan
