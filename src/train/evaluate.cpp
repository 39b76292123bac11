#include "train/evaluate.h"

#include <algorithm>

#include "base/check.h"
#include "train/executor.h"

namespace longspan {
namespace {

size_t bin_of(const std::vector<PositionBin>& bins, int64_t position) {
  const auto after = std::upper_bound(
      bins.begin(), bins.end(), position,
      [](int64_t value, const PositionBin& bin) { return value < bin.positions.end; });
  return static_cast<size_t>(after - bins.begin());
}

void add(LossSum* sum, double weighted_loss, double weight) {
  sum->weighted_loss += weighted_loss;
  sum->weight += weight;
}

// Adds one rank's token losses of a micro-batch to the documents' bins.
void add_losses(const PlannedMicroBatch& batch, const StepTotals::TokenLosses& found,
                EvalResult* result) {
  for (const DocumentPart& part : batch.layout.document_parts(found.line)) {
    const DocumentPiece& piece = batch.data.pieces[static_cast<size_t>(part.document)];
    DocumentLoss& document = result->documents[static_cast<size_t>(piece.document)];
    for (int64_t line = part.line.begin; line < part.line.end; ++line) {
      const double weight = double{batch.data.weights[static_cast<size_t>(line)]};
      if (weight == 0) continue;
      const double loss = found.losses[static_cast<size_t>(line - found.line.begin)] * weight;
      const int64_t position = part.positions.begin + line - part.line.begin;
      add(&document.bins[bin_of(result->bins, position)], loss, weight);
    }
  }
}

// Sums over ranks, then from documents to bins and total.
void sum_up(Communicator& comm, EvalResult* result) {
  std::vector<double> flat;
  for (const DocumentLoss& document : result->documents) {
    for (const LossSum& bin : document.bins)
      flat.insert(flat.end(), {bin.weighted_loss, bin.weight});
  }
  comm.all_reduce_sum(flat, "evaluation losses");
  size_t at = 0;
  for (DocumentLoss& document : result->documents) {
    for (size_t idx = 0; idx < document.bins.size(); ++idx, at += 2) {
      document.bins[idx] = {flat[at], flat[at + 1]};
      for (LossSum* sum : {static_cast<LossSum*>(&document),
                           static_cast<LossSum*>(&result->bins[idx]), &result->total}) {
        add(sum, flat[at], flat[at + 1]);
      }
    }
  }
}

}  // namespace

std::vector<Range> position_bins(int64_t longest, int64_t num_bins) {
  LONGSPAN_CHECK(longest >= 1 && num_bins >= 1, "longest ", longest, ", bins ", num_bins);
  std::vector<Range> bins;
  for (int64_t end = longest; end > 0 && std::ssize(bins) < num_bins;) {
    const int64_t begin = std::ssize(bins) + 1 == num_bins ? 0 : end / 2;
    bins.push_back({begin, end});
    end = begin;
  }
  std::reverse(bins.begin(), bins.end());
  return bins;
}

EvalResult evaluate(Executor& executor, Communicator& comm, const DocumentSource& source,
                    const EvalOptions& options) {
  EvalResult result;
  const std::vector<int64_t> lengths = document_lengths(source);
  const EpochPlan epoch = plan_epoch(lengths, options.planner.pack, 0,
                                     [&](int64_t document) { return source.name(document); });
  result.pack = epoch.report();
  int64_t longest = 1;
  for (int64_t idx = 0; idx < epoch.micro_batches(); ++idx) {
    for (const DocumentPiece& piece : epoch.pieces(idx))
      longest = std::max(longest, piece.range.size());
  }
  for (const Range& positions : position_bins(longest, options.num_bins)) {
    result.bins.push_back({{}, positions});
  }
  for (int64_t document = 0; document < source.count(); ++document) {
    result.documents.push_back({{}, source.name(document), source.length(document), {}});
    result.documents.back().bins.resize(result.bins.size());
  }
  ScheduleOptions schedule_options = options.schedule;
  schedule_options.evaluate = true;
  for (int64_t idx = 0; idx < epoch.micro_batches(); ++idx) {
    const auto pieces = epoch.pieces(idx);
    std::vector<PlannedMicroBatch> batches;
    batches.push_back(
        plan_micro_batch(materialize(source, {0, {pieces.begin(), pieces.end()}},
                                     {.vocabulary_size = options.planner.vocabulary_size}),
                         options.planner));
    const StepSchedule schedule = build_step_schedule(
        schedule_options, {{&batches[0].layout, &batches[0].plans}}, comm.rank());
    const StepTotals totals = executor.run(
        schedule, batches, {.max_expert_pairs_per_chunk = options.max_expert_pairs_per_chunk});
    for (const auto& losses : totals.token_losses) add_losses(batches[0], losses, &result);
  }
  sum_up(comm, &result);
  return result;
}

}  // namespace longspan
