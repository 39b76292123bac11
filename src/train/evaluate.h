// Loss on held-out documents, by position in the document and by document.
//
// Why by position: a mean over tokens is ruled by short documents; whether a model uses long
// context shows at late positions only. Bins double in width, so that the few long documents fill
// the last ones.
//
//   const EvalResult result = evaluate(executor, comm, source, {.bins = 8, ...});
//   result.mean_loss();  result.bins[7].mean_loss();
//
// All ranks call it together and all get the whole result. Weights are only read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/range.h"
#include "comm/communicator.h"
#include "data/document_source.h"
#include "schedule/step_schedule.h"
#include "train/executor.h"
#include "train/step_planner.h"

namespace longspan {

class Executor;

struct LossSum {
  double weighted_loss = 0;
  double weight = 0;
  // Not a number where nothing was predicted.
  double mean_loss() const { return weighted_loss / weight; }
};

struct PositionBin : LossSum {
  Range positions;  // of the predicting token, in its document
};

struct DocumentLoss : LossSum {
  std::string name;
  int64_t tokens = 0;
  std::vector<LossSum> bins;
};

struct EvalResult {
  LossSum total;
  std::vector<PositionBin> bins;
  std::vector<DocumentLoss> documents;  // in the order of the source
  PackReport pack;                      // what was skipped or split
};

struct EvalOptions {
  StepPlannerOptions planner;  // its pack.shuffle should be off
  ScheduleOptions schedule;    // evaluate() sets its evaluate flag
  int64_t num_bins = 1;
  int64_t max_expert_pairs_per_chunk = kExpertPairsPerChunk;
};

// Ends of num_bins bins over [0, longest): the last bin is half of it, each earlier one half of the
// next. Bins that would be empty are left out, so there may be fewer.
std::vector<Range> position_bins(int64_t longest, int64_t num_bins);

EvalResult evaluate(Executor& executor, Communicator& comm, const DocumentSource& source,
                    const EvalOptions& options);

}  // namespace longspan
