#include "train/step_planner.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "planner/document_order.h"
#include "planner/home_plan.h"
#include "planner/plan_chunks.h"
#include "planner/plan_summary.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Ranks meet in every step, so none is more than one step behind; one more for the step being
// prepared.
constexpr int64_t kKeptSteps = 3;

void add_balance(const PlannedMicroBatch& batch, const StepPlannerOptions& options,
                 PlannedStep* step) {
  for (const ChunkPlans& plans : batch.plans) {
    const PlanSummary summary = summarize(batch.layout, plans.forward, options.costs.speed);
    step->imbalance = std::max(step->imbalance, summary.imbalance);
    step->home_imbalance = std::max(step->home_imbalance, summary.home_imbalance);
    for (const ServerSummary& server : summary.servers) {
      step->sent_rows_max =
          std::max(step->sent_rows_max, server.out_sent.query + server.out_sent.key);
    }
  }
}

// The documents in the order for which chunks have like attention work.
PackedMicroBatch evened_out(const PackedMicroBatch& packed, int chunks) {
  std::vector<int64_t> lengths;
  for (const DocumentPiece& piece : packed.pieces) lengths.push_back(piece.range.size());
  PackedMicroBatch ordered{packed.epoch, {}};
  for (const size_t idx : even_chunk_order(lengths, chunks)) {
    ordered.pieces.push_back(packed.pieces[idx]);
  }
  return ordered;
}

}  // namespace

PlannedMicroBatch plan_micro_batch(MicroBatch data, const StepPlannerOptions& options,
                                   PlannerScratch* scratch) {
  std::vector<int64_t> lengths;
  for (size_t idx = 0; idx + 1 < data.document_begins.size(); ++idx) {
    lengths.push_back(data.document_begins[idx + 1] - data.document_begins[idx]);
  }
  TokenLayout layout =
      TokenLayout::make(lengths, {.chunks = options.chunks, .shares = options.token_shares});
  auto plans = options.core_attention
                   ? plan_chunks(layout, options.costs, {.planner = options.planner}, scratch)
                   : home_plans(layout);
  return {std::move(data), std::move(layout), std::move(plans)};
}

StepPlanner::StepPlanner(const DocumentSource& source, const StepPlannerOptions& options,
                         const DataCursor& cursor, int64_t first_step)
    : source_(source),
      options_(options),
      packer_(document_lengths(source), options.pack,
              [&source](int64_t document) { return source.name(document); }),
      next_to_prepare_(first_step) {
  packer_.seek(cursor);
}

StepPlanner::~StepPlanner() {
  for (auto& [step, result] : steps_) result.wait();
}

PackReport StepPlanner::pack_report() {
  const std::lock_guard lock(packer_mutex_);
  return packer_.epoch_plan().report();
}

void StepPlanner::prepare(int64_t step) {
  for (; next_to_prepare_ <= step; ++next_to_prepare_) {
    // Each step's thread first waits for the one before: the packer's cursor moves in order.
    const auto before = steps_.find(next_to_prepare_ - 1);
    const Result earlier = before == steps_.end() ? Result() : before->second;
    steps_[next_to_prepare_] = std::async(std::launch::async, [this, earlier] {
                                 if (earlier.valid()) earlier.wait();
                                 return make_step();
                               }).share();
  }
}

std::shared_ptr<const PlannedStep> StepPlanner::step(int64_t step) {
  Result result;
  {
    const std::lock_guard lock(mutex_);
    prepare(step + 1);
    const auto found = steps_.find(step);
    LONGSPAN_CHECK(found != steps_.end(), "step ", step, " is over; the next is ",
                   next_to_prepare_);
    result = found->second;
    steps_.erase(steps_.begin(), steps_.lower_bound(step - kKeptSteps));
  }
  return result.get();
}

std::shared_ptr<const PlannedStep> StepPlanner::make_step() {
  const std::lock_guard lock(packer_mutex_);
  auto made = std::make_shared<PlannedStep>();
  for (int64_t idx = 0; idx < options_.micro_batches_per_step; ++idx) {
    const auto read_start = Clock::now();
    MicroBatch data = materialize(source_, evened_out(packer_.next(), options_.chunks),
                                  {.vocabulary_size = options_.vocabulary_size});
    made->data_s += seconds_since(read_start);
    made->loss_weight_sum += data.weight_sum;
    made->tokens += data.size();
    made->documents += static_cast<int64_t>(data.pieces.size());
    const auto plan_start = Clock::now();
    made->micro_batches.push_back(plan_micro_batch(std::move(data), options_, &scratch_));
    const PlannedMicroBatch& batch = made->micro_batches.back();
    add_balance(batch, options_, made.get());
    made->plan_s += seconds_since(plan_start);
    for (int32_t document = 0; document < batch.layout.num_documents(); ++document) {
      const int64_t length = batch.layout.document_tokens(document);
      made->longest_document_tokens = std::max(made->longest_document_tokens, length);
      made->document_tokens.push_back(length);
    }
  }
  made->cursor_after = packer_.cursor();
  made->fill_percent = packer_.epoch_plan().report().fill_percent();
  return made;
}

}  // namespace longspan
