#include "train/trainer.h"

#include <algorithm>
#include <chrono>

#include "attention/attention_kernel.h"
#include "base/check.h"
#include "checkpoint/export_checkpoint.h"
#include "checkpoint/step_folder.h"
#include "checkpoint/train_state.h"
#include "model/transformer_model.h"
#include "observe/machine.h"
#include "optim/learning_rate.h"
#include "planner/home_plan.h"
#include "planner/plan_summary.h"
#include "schedule/schedule_verifier.h"
#include "spec/flops.h"
#include "train/evaluate.h"
#include "train/executor.h"
#include "train/expert_balance.h"
#include "train/model_store.h"
#include "train/run_device.h"
#include "train/run_log.h"
#include "train/step_trace.h"
#include "train/store_state.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kEvalBins = 8;  // of evaluations during training

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Predicted attention of every server in the chunk that is hardest to balance, at home and as
// planned.
PlanBalance plan_balance(const PlannedStep& step, const std::vector<double>& speeds) {
  PlanBalance balance;
  double worst = 0;
  for (const PlannedMicroBatch& batch : step.micro_batches) {
    for (const ChunkPlans& plans : batch.plans) {
      const PlanSummary planned = summarize(batch.layout, plans.forward, speeds);
      if (planned.home_imbalance <= worst) continue;
      worst = planned.home_imbalance;
      const PlanSummary home = summarize(
          batch.layout, home_plan(batch.layout, plans.forward.chunk, Direction::kForward));
      balance.before.clear();
      balance.after.clear();
      // With dedicated servers some ranks hold the tokens and the others run the attention.
      const bool dedicated = std::find(speeds.begin(), speeds.end(), 0.0) != speeds.end();
      for (size_t rank = 0; rank < speeds.size(); ++rank) {
        if (!dedicated || speeds[rank] == 0) {
          balance.before.push_back(static_cast<double>(home.servers[rank].charged_pairs));
        }
        if (speeds[rank] > 0) {
          balance.after.push_back(static_cast<double>(planned.servers[rank].charged_pairs));
        }
      }
    }
  }
  return balance;
}

class RankTrainer {
 public:
  RankTrainer(const TrainRun& run, Communicator& comm)
      : run_(run),
        setup_(run.setup),
        config_(run.setup.config()),
        comm_(comm),
        model_(make_model(setup_.spec, run_tensors(config_, comm.rank()),
                          config_.layout.expert_group)),
        store_(make_parameter_store(setup_.parameters, comm, store_options(config_, comm.rank()))),
        executor_(*model_, store_, comm),
        rates_(make_schedule(config_.optimizer.schedule, config_.optimizer.lr,
                             config_.optimizer.steps, config_.optimizer.warmup_steps,
                             config_.optimizer.decay_steps, config_.optimizer.min_lr_ratio)),
        progress_(run.from.progress) {
    fill_store();
    if (comm.rank() == 0) log_.emplace(setup_, run.process, progress_.step);
  }

  void run() {
    const auto start = Clock::now();
    const int64_t first = progress_.step;
    note(run_.planner.pack_report().describe());
    if (progress_.step < config_.optimizer.steps && agreed_stop()) {
      note(text("stopped on request before step ", first + 1, "; the same command begins there"));
      return;
    }
    if (progress_.step < config_.optimizer.steps) prepare_kernels();
    while (progress_.step < config_.optimizer.steps) {
      train_step(start, first);
      const bool stop = agreed_stop();
      const bool last = progress_.step == config_.optimizer.steps;
      if (!last && is_due(config_.output.eval_every)) evaluate_now();
      if (last || stop || is_due(config_.output.save_every)) save();
      if (stop && !last) {
        note(text("stopped on request after step ", progress_.step,
                  "; the same command goes on from there"));
        return;
      }
    }
    finish(first);
  }

 private:
  bool is_due(int64_t every) const { return every > 0 && progress_.step % every == 0; }
  void note(const std::string& line) {
    if (log_) log_->note(line);
  }

  // Before the first step: later, all ranks would wait for the one that meets a new shape.
  void prepare_kernels() {
    if (!setup_.planner.core_attention) return;
    const auto start = Clock::now();
    const std::vector<int64_t> documents = document_lengths(*setup_.train);
    const int64_t rows_max = std::min(config_.batch.micro_batch_tokens / config_.layout.chunks,
                                      *std::max_element(documents.begin(), documents.end()));
    const int64_t shapes = prepare_attention(
        model_->attention_shape(), model_->scalar_type(), model_->device(), rows_max,
        /*split=*/config_.layout.ranks > 1 || config_.layout.chunks > 1);
    if (shapes == 0) return;
    comm_.barrier("kernels are prepared");
    note(text("attention: ", shapes, " shapes planned in ", seconds_since(start), " s"));
  }

  void fill_store() {
    if (run_.from.checkpoint) {
      SavedState saved(*run_.from.checkpoint);
      saved.check_model(setup_.parameters.parameters(), store_.float64());
      load_state(store_, comm_, saved);
    } else if (config_.model.init == "weights") {
      load_hf_weights(store_, comm_, config_.model.path);
    } else {
      fill_random(setup_.parameters, static_cast<uint64_t>(config_.model.seed), store_, comm_);
    }
  }

  void train_step(Clock::time_point run_start, int64_t first_step) {
    const auto start = Clock::now();
    planned_ = run_.planner.step(progress_.step);
    // What is still missing of the step's preparation: planning comes last in it.
    const double wait_s = seconds_since(start);
    const double plan_exposed_s = std::min(wait_s, planned_->plan_s);
    const StepTotals totals = run_schedule(*planned_);
    std::vector<double> sums = {totals.weighted_loss_sum, totals.attention_s};
    comm_.all_reduce_sum(sums, "loss of the step");

    StepMetrics metrics;
    const std::vector<ExpertLoads> loads = expert_loads(setup_.spec, totals, comm_);
    metrics.expert_imbalance = expert_imbalance(loads);
    metrics.idle_experts = idle_experts(loads);
    metrics.learning_rate = rates_.at(progress_.step);
    if (planned_->loss_weight_sum > 0) {
      metrics.loss = sums[0] / planned_->loss_weight_sum;
      metrics.grad_norm = store_.step({.beta1 = config_.optimizer.betas[0],
                                       .beta2 = config_.optimizer.betas[1],
                                       .eps = config_.optimizer.eps,
                                       .weight_decay = config_.optimizer.weight_decay},
                                      metrics.learning_rate, config_.optimizer.clip,
                                      text("update of step ", progress_.step + 1));
      move_selection_bias(loads, config_.optimizer.selection_bias_rate, model_->parameters(),
                          store_);
    } else {
      metrics.skipped = true;
      store_.discard_gradients();
      note(text("step ", progress_.step + 1,
                ": no token has a loss weight; the weights stay as they are"));
    }
    advance(*planned_);
    metrics.step_s = seconds_since(start);
    metrics.data_s = wait_s - plan_exposed_s;
    metrics.plan_exposed_ms = 1e3 * plan_exposed_s;
    metrics.server_busy = sums[1] / comm_.size() / metrics.step_s;
    const auto steps_left = static_cast<double>(config_.optimizer.steps - progress_.step);
    metrics.eta_s =
        seconds_since(run_start) / static_cast<double>(progress_.step - first_step) * steps_left;
    log_step(std::move(metrics));
  }

  StepTotals run_schedule(const PlannedStep& planned) {
    std::vector<MicroBatchPlan> micro_batches;
    for (const PlannedMicroBatch& batch : planned.micro_batches) {
      micro_batches.push_back({&batch.layout, &batch.plans});
    }
    const StepSchedule schedule = build_step_schedule(setup_.schedule, micro_batches, comm_.rank());
#ifdef LONGSPAN_VERIFY
    std::vector<StepSchedule> all;
    for (int rank = 0; rank < comm_.size(); ++rank) {
      all.push_back(build_step_schedule(setup_.schedule, micro_batches, rank));
    }
    verify_schedules(setup_.schedule, micro_batches, all);
#endif
    RunOptions options{.loss_scale = planned.loss_weight_sum > 0 ? 1 / planned.loss_weight_sum : 1,
                       .max_expert_pairs_per_chunk = config_.layout.expert_chunk_pairs};
    const int64_t step = progress_.step + 1;
    if (step != config_.output.trace_step) {
      return executor_.run(schedule, planned.micro_batches, options);
    }
    comm_.barrier("beginning of a traced step");  // times begin together on all ranks
    StepTrace trace(comm_.rank(), model_->device());
    options.trace = &trace;
    StepTotals totals = executor_.run(schedule, planned.micro_batches, options);
    const auto path = std::filesystem::path(config_.output.folder) / "trace.json";
    write_step_trace(path, trace.events(schedule, planned.micro_batches), comm_);
    note(text("trace of step ", step, ": ", path.string(), " (open in https://ui.perfetto.dev)"));
    return totals;
  }

  void advance(const PlannedStep& planned) {
    ++progress_.step;
    progress_.updates = store_.updates();
    progress_.tokens_seen += planned.tokens;
    progress_.documents_seen += planned.documents;
    progress_.cursor = planned.cursor_after;
  }

  void log_step(StepMetrics metrics) {
    if (!log_) return;
    const PlannedStep& planned = *planned_;
    metrics.step = progress_.step;
    metrics.total_steps = config_.optimizer.steps;
    metrics.epoch = planned.cursor_after.epoch;
    metrics.tokens = planned.tokens;
    metrics.weighted_tokens = planned.loss_weight_sum;
    metrics.longest_document = planned.longest_document_tokens;
    metrics.pack_fill =
        static_cast<double>(planned.tokens) /
        static_cast<double>(config_.batch.micro_batch_tokens * std::ssize(planned.micro_batches));
    metrics.documents_seen = progress_.documents_seen;
    metrics.tokens_seen = progress_.tokens_seen;
    ModelWork work;
    for (const int64_t tokens : planned.document_tokens) work += document_work(setup_.spec, tokens);
    metrics.flops = training_flops(setup_.spec, work);
    metrics.plan_ms = 1e3 * planned.plan_s;
    if (setup_.planner.core_attention) {
      metrics.imbalance = planned.imbalance;
      metrics.imbalance_home = planned.home_imbalance;
      metrics.send_bytes_max = planned.sent_rows_max * row_bytes();
    }
    const at::Device device = model_->device();
    const bool on_cpu = device.is_cpu();
    metrics.memory_peak_bytes = on_cpu ? peak_resident_bytes() : device_bytes_peak(device);
    metrics.memory_limit_bytes =
        on_cpu ? memory_limit_bytes() : gpu_info(device.index()).memory_bytes;
    if (!on_cpu) {
      const DeviceReserve reserve = device_reserve(device);
      metrics.memory_reserved_bytes = reserve.bytes_peak;
      metrics.device_allocations = reserve.allocations;
    }
    log_->step(std::move(metrics));
  }

  // Bytes of a key row (K and V); query rows are wider, so this is a lower bound where queries
  // move.
  int64_t row_bytes() const {
    const auto element_bytes = static_cast<int64_t>(c10::elementSize(model_->scalar_type()));
    return 2 * setup_.spec.kv_width() * element_bytes;
  }

  bool agreed_stop() {
    std::vector<double> stop = {run_.process.stop != nullptr && run_.process.stop->load() ? 1.0
                                                                                          : 0.0};
    comm_.all_reduce_max(stop, "stop request");
    return stop[0] > 0;
  }

  void evaluate_now() {
    if (!setup_.eval) return;
    const auto start = Clock::now();
    const EvalResult result =
        evaluate(executor_, comm_, *setup_.eval,
                 {.planner = evaluation_planner(setup_),
                  .schedule = setup_.schedule,
                  .num_bins = kEvalBins,
                  .max_expert_pairs_per_chunk = config_.layout.expert_chunk_pairs});
    if (log_) log_->evaluation(progress_.step, result, seconds_since(start));
  }

  void save() {
    progress_.data_files = setup_.train->fingerprints();
    checkpoint_ = save_train_state(
        comm_, config_.output.folder,
        {.progress = progress_,
         .run = {.config_toml = setup_.loaded.toml(),
                 .engine_version = run_.process.version,
                 .engine_commit = run_.process.commit,
                 .ranks = config_.layout.ranks,
                 .shard_group = config_.layout.shard_group,
                 .attention_profile = config_.attention.profile},
         .parameters = parameter_records(setup_.parameters.parameters()),
         .arrays = state_arrays(store_),
         .files = model_files(setup_.spec, config_.model.path, folder_of_weights()),
         .keep_latest = config_.output.keep_latest});
    store_.drop_host_copies();
  }

  void finish(int64_t first_step) {
    if (progress_.step == first_step) {
      note(text(
          "all ", first_step,
          " steps were done before; nothing was trained: for more give optimizer.steps, to start "
          "anew another output.folder"));
    } else {
      evaluate_now();
    }
    if (config_.output.hf_export_at_end) export_final();
    if (!log_) return;
    std::optional<PlanBalance> balance;
    if (planned_ && setup_.planner.core_attention) {
      balance = plan_balance(*planned_, setup_.planner.costs.speed);
    }
    if (config_.output.report && planned_) log_->write_report(balance);
    log_->summary(step_path(config_.output.folder, progress_.step).string(),
                  run_.planner.pack_report(), planned_.get());
  }

  // Empty if the run began with random ones.
  std::string folder_of_weights() const {
    return config_.model.init == "weights" ? config_.model.path : "";
  }

  void export_final() {
    const auto to = std::filesystem::path(config_.output.folder) / "hf";
    if (std::filesystem::exists(to / "config.json")) {
      note(text("export: ", to.string(), " is there already and stays"));
      return;
    }
    HfExportOptions options;
    if (!config_.model.path.empty()) options.companions = hf_companion_files(config_.model.path);
    options.carried_from = folder_of_weights();
    export_weights(store_, comm_, setup_.spec, to, options);
    note(text("export: ", to.string()));
  }

  const TrainRun& run_;
  const RunSetup& setup_;
  const RunConfig& config_;
  Communicator& comm_;
  std::unique_ptr<TransformerModel> model_;
  ParameterStore store_;
  Executor executor_;
  LearningRateSchedule rates_;
  TrainProgress progress_;
  std::optional<RunLog> log_;
  std::shared_ptr<const PlannedStep> planned_;
  std::filesystem::path checkpoint_;
};

// Keys whose other values a resumed run cannot take up: the data cursor would point at other
// documents, and the weights are there already.
void check_same_data(const RunSetup& setup, const Manifest& manifest,
                     const std::filesystem::path& checkpoint) {
  const std::string origin = (checkpoint / "manifest.json").string();
  const LoadedConfig saved = parse_run_config(manifest.run.config_toml, origin);
  for (size_t idx = 0; idx < setup.loaded.settings.size(); ++idx) {
    const Setting& now = setup.loaded.settings[idx];
    const std::string& name = now.key->name;
    const bool matters = name.starts_with("data.") || name == "batch.micro_batch_tokens" ||
                         name == "model.dtype" || name == "model.init" || name == "model.seed";
    // Paths may move; what is in the files is compared by fingerprint.
    if (!matters || name == "data.train" || name == "data.eval") continue;
    const Setting& then = saved.settings[idx];
    if (now.value == then.value) continue;
    throw UserError(text("cannot resume from ", checkpoint.string(), ": ", name, " is ",
                         toml_text(now.value), " (", now.origin, ") but was ",
                         toml_text(then.value),
                         "; give it the old value, or another output.folder to start anew"));
  }
  const auto files = setup.train->fingerprints();
  if (combined_fingerprint(files) == combined_fingerprint(manifest.progress.data_files)) return;
  throw UserError(
      text("cannot resume from ", checkpoint.string(),
           ": the documents of data.train are not those it was made with (",
           manifest.progress.data_files.size(), " files then, ", files.size(),
           " now, or other content); restore them, or use another output.folder to start anew"));
}

}  // namespace

ResumePoint find_resume_point(const RunSetup& setup) {
  const std::filesystem::path folder = setup.config().output.folder;
  const std::optional<int64_t> step = latest_step(folder);
  if (!step) return {};
  if (setup.config().output.resume == "never") {
    throw UserError(
        text(folder.string(), " holds a checkpoint of step ", *step,
             " and output.resume is \"never\": use another output.folder, or resume = \"auto\""));
  }
  if (*step > setup.config().optimizer.steps) {
    throw UserError(text(folder.string(), " holds a checkpoint of step ", *step,
                         ", beyond optimizer.steps = ", setup.config().optimizer.steps,
                         ": give more steps, or another output.folder to start anew"));
  }
  ResumePoint point;
  point.checkpoint = step_path(folder, *step);
  const Manifest manifest = read_manifest(*point.checkpoint);
  check_same_data(setup, manifest, *point.checkpoint);
  SavedState(*point.checkpoint).check_spec(setup.spec);
  point.progress = manifest.progress;
  return point;
}

void train_rank(const TrainRun& run, Communicator& comm) {
  RankTrainer(run, comm).run();
}

}  // namespace longspan
