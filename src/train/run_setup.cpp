#include "train/run_setup.h"

#include <algorithm>

#include <filesystem>

#include "base/error.h"
#include "base/narrow.h"
#include "data/check_disjoint.h"
#include "data/open_documents.h"
#include "spec/hf_config.h"
#include "spec/presets.h"
#include "train/model_experts.h"
#include "train/sequence_mixes.h"

namespace longspan {
namespace {

ModelSpec load_spec(const LoadedConfig& loaded) {
  const ModelConfig& model = loaded.config.model;
  if (model.path.empty()) {
    return naming_key(loaded, "model.preset", [&] { return preset_spec(model.preset); });
  }
  return naming_key(loaded, "model.path", [&] { return load_hf_config(model.path); });
}

OpenOptions open_options(const LoadedConfig& loaded, bool training) {
  const DataConfig& data = loaded.config.data;
  OpenOptions options;
  if (data.tokenizer != "none")
    options.tokenizer = make_tokenizer(data.tokenizer, data.append_end_of_document);
  options.format = parse_document_format(data.format);
  options.seed = static_cast<uint64_t>(data.seed);
  options.fasta.mask_n_weight = static_cast<float>(data.fasta.mask_n_weight);
  options.fasta.soft_mask_weight = static_cast<float>(data.fasta.soft_mask_weight);
  options.fasta.max_n_run = data.fasta.max_n_run;
  if (training) options.circular = data.fasta.circular;
  options.circular_named_by = loaded.cite("data.fasta.circular");
  options.hold_out = data.fasta.hold_out;
  options.hold_out_named_by = loaded.cite("data.fasta.hold_out");
  if (!options.hold_out.empty()) {
    options.fasta.split = training ? Split::kTrain : Split::kHeldOut;
  }
  // Held-out documents are always read as they stand in their files.
  options.reverse_complement = training && data.fasta.reverse_complement == "random";
  return options;
}

std::shared_ptr<const DocumentSource> open(const LoadedConfig& loaded, const ModelSpec& spec,
                                           bool training) {
  const DataConfig& data = loaded.config.data;
  const std::vector<std::string>& patterns = training ? data.train : data.eval;
  if (patterns.empty()) return nullptr;
  return naming_key(loaded, training ? "data.train" : "data.eval", [&] {
    std::shared_ptr<const DocumentSource> source =
        open_documents(patterns, open_options(loaded, training));
    if (source->vocabulary_bound() > spec.vocab_size) check_vocabulary(*source, spec.vocab_size);
    return source;
  });
}

DeviceProfile attention_profile(const LoadedConfig& loaded) {
  const std::string& name = loaded.config.attention.profile;
  if (name == "built-in") {
    return device_profile(loaded.config.layout.device == "cuda" ? "h200" : "laptop_cpu");
  }
  return naming_key(loaded, "attention.profile", [&] {
    return std::filesystem::exists(name) ? read_device_profile(name) : device_profile(name);
  });
}

// A profile without links is a built-in one, and a cluster of its device knows them; or it was
// measured on a single GPU, which is enough for a single rank.
ServerLinks links_of(const DeviceProfile& profile, int64_t ranks) {
  if (!profile.link) {
    for (const std::string& name : cluster_preset_names()) {
      const ClusterSpec cluster = cluster_preset(name);
      if (cluster.device == profile.name) return server_links(cluster, 1);
    }
    if (ranks == 1) return {};
  }
  return server_links(single_node(profile), 1);  // says what is missing
}

// The ranks are taken for those of one machine.
PlanningCosts planning_costs(const LoadedConfig& loaded, const ModelSpec& spec) {
  const RunConfig& config = loaded.config;
  const DeviceProfile profile = attention_profile(loaded);
  const std::string& dtype = config.model.dtype;
  const int64_t value_bytes = dtype == "float64" ? 8 : dtype == "bfloat16" ? 2 : 4;
  const AttentionSizes shape{.query_heads = spec.num_query_heads,
                             .key_heads = spec.num_kv_heads,
                             .key_width = spec.head_dim,
                             .value_width = spec.head_dim,
                             .value_bytes = value_bytes,
                             .accumulator_bytes = std::max<int64_t>(4, value_bytes)};
  const ServerLinks links = naming_key(loaded, "attention.profile",
                                       [&] { return links_of(profile, config.layout.ranks); });
  return uniform_costs(shape, profile, links, narrow<int>(config.layout.ranks));
}

StepPlannerOptions planner_options(const LoadedConfig& loaded, const ModelSpec& spec) {
  const RunConfig& config = loaded.config;
  const auto ranks = static_cast<size_t>(config.layout.ranks);
  const auto dedicated = static_cast<size_t>(config.attention.dedicated);
  StepPlannerOptions options;
  options.pack = {.seed = static_cast<uint64_t>(config.data.seed),
                  .micro_batch_tokens = config.batch.micro_batch_tokens,
                  .overlong = parse_overlong(config.data.overlong),
                  .shuffle = config.data.shuffle};
  options.micro_batches_per_step = config.batch.micro_batches_per_step;
  options.vocabulary_size = spec.vocab_size;
  options.chunks = narrow<int>(config.layout.chunks);
  // Dedicated servers are the last ranks; then only they run attention, and only the others hold
  // tokens.
  options.token_shares.assign(ranks, 1.0);
  options.costs = planning_costs(loaded, spec);
  options.costs.speed.assign(ranks, dedicated > 0 ? 0.0 : 1.0);
  for (size_t rank = ranks - dedicated; rank < ranks; ++rank) {
    options.token_shares[rank] = 0.0;
    options.costs.speed[rank] = 1.0;
  }
  options.planner.epsilon = config.attention.epsilon;
  options.core_attention = spec.count_layers(MixKind::kAttention) > 0;
  return options;
}

ScheduleOptions schedule_options(const RunConfig& config, const ModelSpec& spec) {
  ScheduleOptions options;
  options.num_layers = narrow<int>(spec.num_layers);
  options.band_chunks = narrow<int>(config.layout.band);
  options.stored_mode = stored_mode_from_name(config.layout.stored_mode);
  if (options.stored_mode == StoredMode::kContextOnly) {
    options.inner_mode = stored_mode_from_name(config.layout.inner_mode);
  }
  options.layers = scheduled_layers(spec);
  options.shard_group = narrow<int>(config.layout.shard_group);
  options.expert_group = narrow<int>(config.layout.expert_group);
  options.tied_embeddings = spec.tied_embeddings;
  return options;
}

void check_experts(const RunConfig& config, const ModelSpec& spec) {
  if (spec.count_expert_layers() > 0) {
    return check_expert_group(
        expert_group_shape(spec, config.layout.expert_group, config.layout.expert_chunk_pairs));
  }
  if (config.layout.expert_group > 1) {
    throw UserError(text("layout.expert_group = ", config.layout.expert_group,
                         ", but the model has no experts; leave it out"));
  }
  if (config.optimizer.selection_bias_rate > 0) {
    throw UserError(text("optimizer.selection_bias_rate = ", config.optimizer.selection_bias_rate,
                         ", but the model has no experts; leave it out"));
  }
}

// Finds held-out documents that do not fit before training, not at the first evaluation.
void check_evaluation(const RunSetup& setup) {
  if (!setup.eval) return;
  naming_key(setup.loaded, "data.eval", [&] {
    return plan_epoch(document_lengths(*setup.eval), evaluation_planner(setup).pack, 0,
                      [&](int64_t document) { return setup.eval->name(document); });
  });
}

}  // namespace

RunSetup make_run_setup(LoadedConfig loaded) {
  RunSetup setup;
  setup.loaded = std::move(loaded);
  const RunConfig& config = setup.config();
  setup.spec = load_spec(setup.loaded);
  check_experts(config, setup.spec);
  setup.parameters = ParameterTable(setup.spec, config.layout.expert_group);
  setup.train = open(setup.loaded, setup.spec, /*training=*/true);
  setup.eval = open(setup.loaded, setup.spec, /*training=*/false);
  if (setup.train && setup.eval) check_disjoint(*setup.train, *setup.eval);
  setup.planner = planner_options(setup.loaded, setup.spec);
  setup.schedule = schedule_options(config, setup.spec);
  check_evaluation(setup);
  return setup;
}

StepPlannerOptions evaluation_planner(const RunSetup& setup) {
  StepPlannerOptions options = setup.planner;
  options.pack.shuffle = false;
  return options;
}

}  // namespace longspan
