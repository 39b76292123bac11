#include "plan_report/plan_request.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/nearest_name.h"
#include "baselines/registry.h"
#include "spec/hf_config.h"
#include "spec/presets.h"

namespace longspan {
namespace {

constexpr int64_t kMostServers = 100000;
constexpr int64_t kMostBatches = 100000;

std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// Throws unless `name`, whose '-' may stand for '_', is one of `names`.
void check_name(const std::string& option, const std::string& name,
                const std::vector<std::string>& names) {
  const std::string spelled = with_underscores(name);
  if (std::find(names.begin(), names.end(), spelled) != names.end()) return;
  std::string known;
  for (const std::string& other : names) known += (known.empty() ? "" : ", ") + other;
  throw UserError(text(option, " ", name, ": no such preset; did you mean \"",
                       nearest_name(spelled, names), "\"? There are: ", known));
}

ModelSpec find_model(const std::string& name) {
  if (std::filesystem::is_directory(name)) return load_hf_config(name);
  if (name.find('/') != std::string::npos) {
    throw UserError(text("--model ", name, ": no such folder"));
  }
  check_name("--model", name, preset_names());
  return preset_spec(name);
}

ClusterSpec find_cluster(const std::string& name) {
  check_name("--cluster", name, cluster_preset_names());
  return cluster_preset(name);
}

void check_positive(const std::string& option, int64_t value) {
  if (value < 1) throw UserError(text(option, " ", value, ": must be at least 1"));
}

// Says what a plan is of: core attention, or the scoring of an index.
void check_planned(PlanRequest& request) {
  const ModelSpec& model = request.target.model;
  request.backward = !plans_index_scoring(model);
  if (!request.backward && !request.baselines.empty()) {
    throw UserError(text("--baseline: baselines place core attention, and ",
                         model_family_name(model.family),
                         " has none; its plans are of scoring its index"));
  }
}

std::vector<std::string> chosen_baselines(const PlanOptions& options) {
  for (const std::string& name : options.baselines) check_baseline_name(name);
  return options.all_baselines ? baseline_names() : options.baselines;
}

TokenGrid grid_of(const PlanOptions& options) {
  if (options.servers == 0 || options.tokens_per_rank.empty()) {
    throw UserError(
        "planning a length file or a stream needs --servers N and --tokens-per-rank T: together "
        "they are the grid that a batch fills");
  }
  check_positive("--servers", options.servers);
  if (options.servers > kMostServers) {
    throw UserError(text("--servers ", options.servers, ": at most ", kMostServers));
  }
  const TokenGrid grid{options.servers,
                       parse_token_count(options.tokens_per_rank, "--tokens-per-rank")};
  constexpr int64_t kMostTokens = int64_t{1} << 40;
  if (grid.tokens_each > kMostTokens / grid.servers) {
    throw UserError(text("--servers ", grid.servers, " x --tokens-per-rank ", grid.tokens_each,
                         ": more than 2^40 tokens in a batch"));
  }
  return grid;
}

}  // namespace

PlanRequest make_request(const PlanOptions& options) {
  if (options.lengths.empty() == options.stream.empty()) {
    throw UserError(
        "say what to plan: a run's TOML file, --lengths FILE or --stream NAME:LEN, one of them");
  }
  const TokenGrid grid = grid_of(options);
  check_positive("--gpus-per-server", options.gpus_per_server);
  PlanRequest request;
  request.title = options.lengths.empty() ? options.stream : options.lengths;
  request.target = {.model = find_model(options.model.empty() ? "llama_8b" : options.model),
                    .cluster = find_cluster(options.cluster.empty() ? "h200_50" : options.cluster),
                    .gpus_per_server = options.gpus_per_server,
                    .overlap = !options.no_overlap};
  request.target.profile = device_profile(request.target.cluster.device);
  attention_sizes(request.target);
  server_links(request.target.cluster, options.gpus_per_server);
  request.target.on_gpu = request.target.profile.name == "h200";
  request.baselines = chosen_baselines(options);
  check_planned(request);
  request.token_shares.assign(static_cast<size_t>(grid.servers), 1.0);
  request.speeds = request.token_shares;
  request.batches =
      options.lengths.empty()
          ? stream_batches(options.stream, grid, num_batches(options, 8), options.seed)
          : in_order(file_batches(options.lengths, grid, num_batches(options, 1)));
  return request;
}

int64_t num_batches(const PlanOptions& options, int64_t otherwise) {
  if (options.batches < 0) check_positive("--batches", options.batches);
  if (options.batches > kMostBatches) {
    throw UserError(text("--batches ", options.batches, ": at most ", kMostBatches));
  }
  return options.batches == 0 ? otherwise : options.batches;
}

void check_run_options(const PlanOptions& options) {
  if (options.lengths.empty() && options.stream.empty() && options.servers == 0 &&
      options.tokens_per_rank.empty() && options.model.empty() && options.cluster.empty() &&
      options.gpus_per_server == 1) {
    return;
  }
  throw UserError(
      "documents, servers, tokens, model and costs of a run are those of its file; leave the file "
      "out to plan --lengths or --stream with --servers, --tokens-per-rank, --model, --cluster");
}

PlanRequest make_run_request(const RunPlanning& run, BatchSource batches,
                             const PlanOptions& options) {
  check_run_options(options);
  PlanRequest request;
  request.title = "first micro-batches of the run";
  request.target.model = run.model;
  request.target.value_bytes = run.value_bytes;
  request.target.on_gpu = run.on_gpu;
  request.target.cluster.name = "of the run";
  request.target.profile = {.name = run.profile, .source = "attention.profile"};
  request.chunks = run.chunks;
  request.token_shares = run.token_shares;
  request.speeds = run.costs.speed;
  request.costs = run.costs;
  request.planner = run.planner;
  request.baselines = chosen_baselines(options);
  check_planned(request);
  if (plans_index_scoring(run.model)) {
    // Every rank scores, dedicated attention servers among them.
    request.costs = index_costs(request.target, static_cast<int>(run.token_shares.size()));
    request.speeds = request.costs->speed;
  }
  request.batches = std::move(batches);
  return request;
}

}  // namespace longspan
