#include "plan_report/plan_request.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/narrow.h"
#include "base/nearest_name.h"
#include "baselines/registry.h"
#include "spec/hf_config.h"
#include "spec/presets.h"

namespace longspan {
namespace {

constexpr int64_t kMostServers = 100000;

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

struct ServerProfile {
  ClusterSpec cluster;
  DeviceProfile profile;
};

// `attention.profile` of a run: the cluster's own, a built-in one by name, or a file. A measured
// machine brings its own links unless a cluster was asked for.
ServerProfile run_profile(const std::string& profile, const std::string& cluster) {
  ServerProfile found;
  if (profile == "built-in") {
    found.cluster = find_cluster(cluster.empty() ? "laptop" : cluster);
    found.profile = device_profile(found.cluster.device);
    return found;
  }
  const std::vector<std::string> names = device_profile_names();
  const bool known = std::find(names.begin(), names.end(), profile) != names.end();
  found.profile = known ? device_profile(profile) : read_device_profile(profile);
  found.cluster = cluster.empty() && found.profile.link
                      ? single_node(found.profile)
                      : find_cluster(cluster.empty() ? "laptop" : cluster);
  return found;
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
  attention_shape(request.target);
  server_links(request.target.cluster, options.gpus_per_server);
  request.baselines = chosen_baselines(options);
  request.token_shares.assign(static_cast<size_t>(grid.servers), 1.0);
  request.speeds = request.token_shares;
  request.batches =
      options.lengths.empty()
          ? stream_batches(options.stream, grid, num_batches(options, 8), options.seed)
          : file_batches(options.lengths, grid, num_batches(options, 1));
  return request;
}

int64_t num_batches(const PlanOptions& options, int64_t otherwise) {
  if (options.batches < 0) check_positive("--batches", options.batches);
  return options.batches == 0 ? otherwise : options.batches;
}

void check_run_options(const PlanOptions& options) {
  if (options.lengths.empty() && options.stream.empty() && options.servers == 0 &&
      options.tokens_per_rank.empty() && options.model.empty() && options.gpus_per_server == 1) {
    return;
  }
  throw UserError(
      "documents, servers, tokens and model of a run are those of its file; leave the file out to "
      "plan --lengths or --stream with --servers, --tokens-per-rank and --model");
}

PlanRequest make_run_request(const RunConfig& config, const ModelSpec& model,
                             std::vector<LengthBatch> batches, const PlanOptions& options) {
  check_run_options(options);
  const ServerProfile found = run_profile(config.attention.profile, options.cluster);
  PlanRequest request;
  request.title = text("first micro-batches of ", config.batch.micro_batch_tokens, " tokens");
  request.target = {.model = model,
                    .value_bytes = config.model.dtype == "float64" ? 8 : 4,
                    .cluster = found.cluster,
                    .profile = found.profile,
                    .overlap = false};
  request.chunks = narrow<int>(config.layout.chunks);
  const auto ranks = static_cast<size_t>(config.layout.ranks);
  const auto dedicated = static_cast<size_t>(config.attention.dedicated);
  request.token_shares.assign(ranks, 1.0);
  request.speeds.assign(ranks, dedicated > 0 ? 0.0 : 1.0);
  for (size_t rank = ranks - dedicated; rank < ranks; ++rank) {
    request.token_shares[rank] = 0.0;
    request.speeds[rank] = 1.0;
  }
  request.planner.epsilon = config.attention.epsilon;
  request.baselines = chosen_baselines(options);
  request.batches = std::move(batches);
  return request;
}

}  // namespace longspan
