#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>

#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/step_folder.h"
#include "checkpoint/train_state.h"
#include "formats/json.h"
#include "model/transformer_model.h"
#include "option_checks.h"
#include "overrides.h"
#include "run_process.h"
#include "train/executor.h"
#include "train/kernel_audit.h"
#include "train/model_store.h"
#include "train/run_device.h"
#include "train/run_log.h"
#include "train/store_state.h"
#include "verbs.h"

namespace longspan {
namespace {

struct EvalArguments {
  std::string config;
  int64_t by_position = 1;
  std::string checkpoint;
  std::string json;
  std::vector<std::string> overrides;
};

// The weights to judge: the checkpoint given, else the latest one of the run, else those of the
// model folder.
std::string fill_store(const RunSetup& setup, const EvalArguments& arguments, ParameterStore& store,
                       Communicator& comm) {
  const std::string folder =
      arguments.checkpoint.empty() ? setup.config().output.folder : arguments.checkpoint;
  if (!arguments.checkpoint.empty() || latest_step(folder)) {
    SavedState saved(resolve_checkpoint(folder));
    saved.check_spec(setup.spec);
    saved.check_model(setup.parameters.parameters(), store.float64());
    load_state(store, comm, saved);
    return saved.folder().string();
  }
  if (setup.config().model.init == "weights") {
    load_hf_weights(store, comm, setup.config().model.path);
    return setup.config().model.path;
  }
  throw UserError(text("nothing to evaluate: ", folder,
                       " has no complete checkpoint and model.init is \"random\"; train "
                       "first, or name a checkpoint with --checkpoint"));
}

void evaluate_rank(const RunSetup& setup, const EvalArguments& arguments, RunProcess& process,
                   Communicator& comm) {
  const RunConfig& config = setup.config();
  require_fast(kernel_audit(setup.spec, run_tensors(config, comm.rank())),
               config.layout.allow_slow);
  const auto model =
      make_model(setup.spec, run_tensors(config, comm.rank()), config.layout.expert_group);
  ParameterStore store =
      make_parameter_store(setup.parameters, comm, store_options(config, comm.rank()));
  const std::string weights = fill_store(setup, arguments, store, comm);
  Executor executor(*model, store, comm);
  const EvalResult result =
      evaluate(executor, comm, *setup.eval,
               {.planner = evaluation_planner(setup),
                .schedule = setup.schedule,
                .num_bins = arguments.by_position,
                .max_expert_pairs_per_chunk = config.layout.expert_chunk_pairs});
  if (comm.rank() != 0) return;
  process.console() << "evaluation of " << weights << "\n  " << result.pack.describe() << "\n"
                    << evaluation_table(result) << std::flush;
  if (!arguments.json.empty()) write_json_atomic(arguments.json, evaluation_json(result));
}

RunSetup prepare(const EvalArguments& arguments, const RunProcess& process) {
  RunSetup setup = make_run_setup(
      load_run_config(arguments.config, arguments.overrides, process.surroundings()));
  if (!setup.eval) {
    throw UserError(
        text(arguments.config, ": data.eval names no documents; give --data.eval='folder/*.txt'"));
  }
  return setup;
}

int eval(const EvalArguments& arguments) {
  RunProcess process;
  try {
    RunSetup setup;
    process.prepare([&] { setup = prepare(arguments, process); });
    process.run(setup.config(),
                [&](Communicator& comm) { evaluate_rank(setup, arguments, process, comm); });
    return 0;
  } catch (const std::exception& error) {
    return process.fail(error);
  }
}

}  // namespace

void add_eval(CLI::App& app, VerbRunner& run) {
  auto arguments = std::make_shared<EvalArguments>();
  CLI::App* verb =
      app.add_subcommand("eval", "Loss on held-out documents, by position and by document");
  verb->add_option("config", arguments->config, "Run configuration (TOML)")->required();
  verb->add_option("--by-position", arguments->by_position,
                   "Bins of positions, each twice as wide as the one before")
      ->check(whole_number(1));
  verb->add_option("--checkpoint", arguments->checkpoint,
                   "Checkpoint or run folder; default: that of the run");
  verb->add_option("--json", arguments->json,
                   "Also write the result, with every document, to this file");
  allow_overrides(*verb);
  verb->callback([verb, arguments, &run] {
    arguments->overrides = verb->remaining();
    run = [arguments] { return eval(*arguments); };
  });
}

}  // namespace longspan
