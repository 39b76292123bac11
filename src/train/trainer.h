// The training loop of one rank, from a set-up to the last checkpoint.
//
//   const ResumePoint from = find_resume_point(setup);
//   StepPlanner planner(*setup.train, setup.planner, from.progress.cursor, from.progress.step);
//   run_ranks(setup.num_ranks(), ..., [&](Communicator& comm) {
//     train_rank({setup, process, planner, from}, comm);
//   });
//
// A step: take the planned micro-batches, build this rank's schedule, run it, sum the loss over
// ranks, update the weights, log. Steps are saved as output.save_every says and at the end; a stop
// request (SIGTERM, SIGINT, SIGUSR1) saves after the step in work and returns. A checkpoint and the
// same configuration give the same bits as a run that was never interrupted.
//
// All ranks call train_rank; errors of one rank end all (comm/run_ranks.h).
#pragma once

#include <filesystem>
#include <optional>

#include "checkpoint/manifest.h"
#include "comm/communicator.h"
#include "train/run_setup.h"
#include "train/step_planner.h"
#include "train/train_process.h"

namespace longspan {

// Where a run goes on: the latest complete checkpoint of output.folder, or the beginning.
struct ResumePoint {
  std::optional<std::filesystem::path> checkpoint;
  TrainProgress progress;
};

// UserError if output.resume is "never" and there is one, or if it was made with other documents,
// another packing or another model.
ResumePoint find_resume_point(const RunSetup& setup);

struct TrainRun {
  const RunSetup& setup;
  const TrainProcess& process;
  StepPlanner& planner;
  const ResumePoint& from;
};

void train_rank(const TrainRun& run, Communicator& comm);

}  // namespace longspan
