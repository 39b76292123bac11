#include <CLI/CLI.hpp>

#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/json.h"
#include "observe/console.h"
#include "option_checks.h"
#include "overrides.h"
#include "plan_report/explain_plan.h"
#include "plan_report/plan_picture.h"
#include "plan_report/plan_request.h"
#include "plan_report/study_text.h"
#include "run_process.h"
#include "train/run_setup.h"
#include "verbs.h"

namespace longspan {
namespace {

struct PlanArguments {
  std::string config;
  std::vector<std::string> overrides;
  PlanOptions options;
  bool explain = false;
  std::string json;
  std::string svg;
};

PlanRequest request_of_run(const PlanArguments& arguments) {
  check_run_options(arguments.options);
  const RunProcess process;
  const RunSetup setup = make_run_setup(
      load_run_config(arguments.config, arguments.overrides, process.surroundings()));
  require_training_data(setup.loaded);
  const auto packer = std::make_shared<Packer>(
      document_lengths(*setup.train), setup.planner.pack,
      [source = setup.train](int64_t document) { return source->name(document); });
  const std::string& dtype = setup.config().model.dtype;
  return make_run_request({.model = setup.spec,
                           .value_bytes = dtype == "float64"    ? 8
                                          : dtype == "bfloat16" ? 2
                                                                : 4,
                           .on_gpu = setup.config().layout.device == "cuda",
                           .profile = setup.config().attention.profile,
                           .chunks = setup.planner.chunks,
                           .token_shares = setup.planner.token_shares,
                           .costs = setup.planner.costs,
                           .planner = setup.planner.planner},
                          packed_batches(packer, num_batches(arguments.options, 4)),
                          arguments.options);
}

void check_places(const PlanArguments& arguments) {
  if (arguments.json.empty() || arguments.svg.empty()) return;
  std::error_code ignored;
  const auto json = std::filesystem::weakly_canonical(arguments.json, ignored);
  if (json != std::filesystem::weakly_canonical(arguments.svg, ignored)) return;
  throw UserError(text("--json and --svg are one file, ", arguments.json,
                       ": the second would replace the first; name two"));
}

int plan(const PlanArguments& arguments) {
  if (arguments.config.empty() && !arguments.overrides.empty()) {
    throw UserError(
        text("unknown option ", arguments.overrides.front(), "; see longspan plan --help"));
  }
  check_places(arguments);
  PlanRequest request =
      arguments.config.empty() ? make_request(arguments.options) : request_of_run(arguments);
  const int64_t batches = request.batches.count;
  Progress progress(std::cerr, is_terminal(2), "plan", batches, "batches");
  const PlanStudy study =
      study_plans(std::move(request), [&](int64_t done) { progress.update(done); });
  progress.finish();
  std::cout << study_text(study);
  const PlanExample& example = study.example;
  if (arguments.explain) std::cout << "\n" << explain_plan(example, study.request.planner);
  if (!arguments.json.empty()) write_json_atomic(arguments.json, study_json(study));
  if (!arguments.svg.empty()) {
    write_text_atomic(arguments.svg, plan_picture_svg(example.layout, example.forward,
                                                      study.request.title + ", forward"));
  }
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, VerbRunner& run) {
  auto arguments = std::make_shared<PlanArguments>();
  PlanOptions& options = arguments->options;
  CLI::App* verb = app.add_subcommand(
      "plan", "Plan attention for a run, a file of lengths or a stream, and say how good it is");
  verb->add_option("config", arguments->config, "Run configuration (TOML): plan its first batches");
  verb->add_option("--lengths", options.lengths, "File of document lengths, one on each line");
  verb->add_option("--stream", options.stream,
                   "NAME:LEN, as pretrain:512K, prolong:128K, hist:64K");
  verb->add_option("--servers", options.servers, "Attention servers")->check(whole_number(1));
  verb->add_option("--tokens-per-rank", options.tokens_per_rank, "Tokens of each server, as 128K");
  verb->add_option("--model", options.model, "Preset or Hugging Face folder; default llama-8b");
  verb->add_option("--gpus-per-server", options.gpus_per_server,
                   "GPUs that share a server's heads; default 1")
      ->check(whole_number(1));
  verb->add_option("--batches", options.batches,
                   "Batches to plan; default 1 of a file, 8 of a stream, 4 of a run")
      ->check(whole_number(1));
  verb->add_option("--cluster", options.cluster, "h200-50 (the default), h200-40 or laptop");
  verb->add_option("--baseline", options.baselines, "Compare with this policy (may be repeated)");
  verb->add_flag("--all-baselines", options.all_baselines, "Compare with all policies");
  verb->add_flag("--no-overlap", options.no_overlap, "Linear layers hide no exchange");
  verb->add_option("--seed", options.seed, "Of the stream; default 1")->check(whole_number(0));
  verb->add_flag("--explain", arguments->explain, "Say what each pass did, and why");
  verb->add_option("--json", arguments->json, "Also write all figures to this file");
  verb->add_option("--svg", arguments->svg, "Draw who computes what of the first batch");
  allow_overrides(*verb);
  verb->callback([verb, arguments, &run] {
    arguments->overrides = verb->remaining();
    run = [arguments] { return plan(*arguments); };
  });
}

}  // namespace longspan
