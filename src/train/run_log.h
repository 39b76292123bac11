// All that a run says: console lines, the JSONL log, the TensorBoard file and the HTML report. Rank
// 0 alone has one.
//
//   RunLog log(setup, process, resumed_step);
//   log.step(metrics);  log.evaluation(step, result, seconds);
//   log.write_report(balance);  log.summary(...);
//
// The JSONL log is the record; the report is drawn from it, so that a resumed run reports all its
// steps. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "data/packer.h"
#include "formats/json.h"
#include "observe/event_file.h"
#include "observe/jsonl_log.h"
#include "observe/peak_flops.h"
#include "observe/report.h"
#include "observe/step_metrics.h"
#include "train/evaluate.h"
#include "train/step_planner.h"
#include "train/train_process.h"

namespace longspan {

class RunLog {
 public:
  // Goes on behind `resumed_step`; 0 starts anew.
  RunLog(const RunSetup& setup, const TrainProcess& process, int64_t resumed_step);

  void note(const std::string& line);
  // Gives the metrics the peak, raised if this step was faster.
  void step(StepMetrics metrics);
  void evaluation(int64_t step, const EvalResult& result, double eval_s);
  void write_report(const std::optional<PlanBalance>& balance);
  // Where things are, what was left out and what was balanced: the last lines of a run.
  // `last_step`: null if none was trained.
  void summary(const std::string& checkpoint, const PackReport& packed,
               const PlannedStep* last_step);

 private:
  const RunSetup& setup_;
  const TrainProcess& process_;
  PeakFlops peak_;
  JsonlLog jsonl_;
  std::optional<EventFile> events_;
};

// The evaluation as a table: a row for each bin of positions, then the longest documents.
std::string evaluation_table(const EvalResult& result);
// The same for programs, with every document.
Json evaluation_json(const EvalResult& result);

}  // namespace longspan
