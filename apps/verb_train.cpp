#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>

#include <filesystem>
#include <iostream>

#include "base/narrow.h"
#include "checkpoint/run_folder.h"
#include "checkpoint/run_lock.h"
#include "observe/build_info.h"
#include "option_checks.h"
#include "overrides.h"
#include "run_process.h"
#include "stop_signals.h"
#include "train/kernel_audit.h"
#include "train/measure_peak.h"
#include "train/run_device.h"
#include "train/trainer.h"
#include "verbs.h"

namespace longspan {
namespace {

struct TrainArguments {
  std::string config;
  int64_t ranks = 0;
  int64_t trace_step = 0;
  bool print_config = false;
  bool verbose = false;
  std::vector<std::string> overrides;
};

void print_configuration(const LoadedConfig& loaded, bool whole, std::ostream& console) {
  if (whole) {
    console << loaded.annotated_toml() << "\n";
    return;
  }
  const auto path = std::filesystem::path(loaded.config.output.folder) / "config.toml";
  console << "# What was chosen; everything else has its default: " << path.string()
          << ", or --verbose.\n"
          << loaded.changed_toml() << "\n";
}

void print_start(const RunSetup& setup, const RunProcess& process, const TrainProcess& train,
                 const ResumePoint& from) {
  std::ostream& console = process.console();
  const RunConfig& config = setup.config();
  console << "longspan " << train.version << (train.commit.empty() ? "" : " " + train.commit)
          << ", " << process.launch().description << "\n";
  console << "model        " << model_family_name(setup.spec.family) << ", "
          << setup.spec.num_layers << " layers x " << setup.spec.hidden_size << ", "
          << setup.parameters.total_elements() << " parameters, " << config.model.dtype << "\n";
  console << "layout       " << setup.planner.chunks << " chunks x " << config.layout.ranks
          << " ranks (" << config.attention.dedicated << " dedicated to attention), "
          << config.layout.threads_per_rank << " threads each, stored mode "
          << config.layout.stored_mode << "\n";
  const int ranks = narrow<int>(process.local_ranks(config));
  for (int idx = 0; idx < devices_of_ranks(run_device(config, 0), ranks); ++idx) {
    console << "device       " << describe_device(run_device(config, idx)) << "\n";
  }
  for (const std::string& line : train.kernels) console << "kernel       " << line << "\n";
  console << "peak         " << train.peak.description << "\n";
  console << "documents    " << setup.train->count() << " for training, "
          << (setup.eval ? setup.eval->count() : 0) << " held out\n";
  for (const auto& source : {setup.train, setup.eval}) {
    if (!source) continue;
    for (const std::string& note : source->notes()) console << "             " << note << "\n";
  }
  if (from.checkpoint) console << "resuming     " << from.checkpoint->string() << "\n";
  console << std::flush;
}

int train(const TrainArguments& arguments) {
  RunProcess process;
  try {
    std::vector<std::string> overrides = arguments.overrides;
    if (arguments.ranks > 0)
      overrides.push_back("--layout.ranks=" + std::to_string(arguments.ranks));
    if (arguments.trace_step > 0)
      overrides.push_back("--output.trace_step=" + std::to_string(arguments.trace_step));
    LoadedConfig loaded;
    process.prepare(
        [&] { loaded = load_run_config(arguments.config, overrides, process.surroundings()); });
    if (arguments.print_config) {
      process.console() << loaded.annotated_toml();
      return 0;
    }
    RunSetup setup;
    std::optional<RunLock> lock;
    std::vector<std::string> others;
    process.prepare([&] {
      require_training_data(loaded);
      setup = make_run_setup(std::move(loaded));
      if (!process.is_first()) return;
      const std::string& folder = setup.config().output.folder;
      naming_key(setup.loaded, "output.folder", [&] {
        others = check_run_folder(folder);
        lock.emplace(folder);
        if (lock->held()) remove_run_leftovers(folder);
      });
    });
    // Only now: until the lock was taken another run could add checkpoints.
    ResumePoint from;
    std::optional<StepPlanner> planner;
    process.prepare([&] {
      from = find_resume_point(setup);
      naming_key(setup.loaded, "data.train", [&] {
        planner.emplace(*setup.train, setup.planner, from.progress.cursor, from.progress.step);
      });
      run_device(setup.config(), /*rank=*/0);  // UserError if there is none for this process
    });
    const RunConfig& config = setup.config();
    const at::TensorOptions tensors = run_tensors(config, /*rank=*/0);
    const std::vector<KernelUse> kernels = kernel_audit(setup.spec, tensors);
    require_fast(kernels, config.layout.allow_slow);
    set_deterministic(config.run.deterministic);  // before the first product
    at::set_num_threads(
        static_cast<int>(config.layout.threads_per_rank * process.local_ranks(config)));
    TrainProcess train{.console = &process.console(),
                       .version = LONGSPAN_VERSION,
                       .commit = std::string(build_commit()),
                       .peak = measure_peak_flops(tensors),
                       .stop = &stop_requested()};
    for (const KernelUse& use : kernels) train.kernels.push_back(use.line());
    const int64_t processes = config.layout.ranks / process.local_ranks(config);
    train.peak.per_second *= static_cast<double>(
        processes * devices_of_ranks(tensors.device(), narrow<int>(process.local_ranks(config))));
    print_configuration(setup.loaded, arguments.verbose, process.console());
    print_start(setup, process, train, from);
    if (lock && !lock->held()) {
      process.console() << "lock         none: the file system of " << config.output.folder
                        << " has no file locks; start no second run in this folder" << std::endl;
    }
    if (lock && lock->made_folder()) {
      process.console() << "output       " << config.output.folder << ", a new folder" << std::endl;
    }
    if (!others.empty()) {
      process.console() << "output       " << config.output.folder << " holds " << others.size()
                        << " other files and folders (" << others.front()
                        << (others.size() > 1 ? ", ..." : "") << "), which stay as they are\n"
                        << std::flush;
    }
    process.run(config, [&](Communicator& comm) {
      train_rank({setup, train, *planner, from}, comm);
    });
    return 0;
  } catch (const std::exception& error) {
    return process.fail(error);
  }
}

}  // namespace

void add_train(CLI::App& app, VerbRunner& run) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* verb = app.add_subcommand("train", "Train a model as a TOML file says");
  verb->add_option("config", arguments->config, "Run configuration (TOML)")->required();
  verb->add_option("--ranks", arguments->ranks, "Ranks in this process; short for --layout.ranks=N")
      ->check(whole_number(1));
  verb->add_option("--trace", arguments->trace_step,
                   "Write a Chrome trace of this step; short for --output.trace_step=N")
      ->check(whole_number(1));
  verb->add_flag("--print-config", arguments->print_config,
                 "Print the resolved configuration, each value with where it came from, and stop");
  verb->add_flag("--verbose", arguments->verbose,
                 "Begin with the whole resolved configuration, not only with what was chosen");
  allow_overrides(*verb);
  verb->callback([verb, arguments, &run] {
    arguments->overrides = verb->remaining();
    run = [arguments] { return train(*arguments); };
  });
}

}  // namespace longspan
