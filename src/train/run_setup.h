// What a run consists of, made from its configuration before any rank starts: the model's
// description, the documents, and the options of planner, schedule and stores. The ranks of a
// process share it.
//
//   const RunSetup setup = make_run_setup(loaded);
//   run_ranks(setup.num_ranks, ..., [&](Communicator& comm) { train_rank(setup, ..., comm); });
//
// Everything that can be wrong with the input is found here, as a UserError, before anything is
// written. Immutable once made; any thread may read it.
#pragma once

#include <filesystem>
#include <memory>

#include "config/config_loader.h"
#include "data/document_source.h"
#include "schedule/step_schedule.h"
#include "spec/model_spec.h"
#include "spec/parameter_table.h"
#include "train/step_planner.h"

namespace longspan {

struct RunSetup {
  LoadedConfig loaded;
  ModelSpec spec;
  ParameterTable parameters{ModelSpec{}};
  std::shared_ptr<const DocumentSource> train;  // null if the configuration names none
  std::shared_ptr<const DocumentSource> eval;
  StepPlannerOptions planner;
  ScheduleOptions schedule;

  const RunConfig& config() const { return loaded.config; }
  int num_ranks() const { return static_cast<int>(config().layout.ranks); }
};

RunSetup make_run_setup(LoadedConfig loaded);

// The packing of held-out documents: in their own order, otherwise as in training.
StepPlannerOptions evaluation_planner(const RunSetup& setup);

}  // namespace longspan
