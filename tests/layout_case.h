// One training step of a tiny random model on random ragged documents, in any layout: what the
// equality tests compare.
//
//   Case c{.ranks = 4, .chunks = 2, .seed = 7};
//   const Outcome outcome = run_case(c);                    // loss and every gradient, in float64
//   const Outcome there = run_case(c, {.type = at::kBFloat16, .device = gpu});
//
// The whole run stands in here: batches, plans (verified), schedules (verified), ranks as threads.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <c10/util/BFloat16.h>

#include <map>

#include "base/error.h"
#include "base/random.h"
#include "comm/run_ranks.h"
#include "device/device.h"
#include "model/initialize.h"
#include "model/transformer_model.h"
#include "planner/home_plan.h"
#include "planner/plan_verifier.h"
#include "planner/random_plan.h"
#include "schedule/schedule_verifier.h"
#include "spec/presets.h"
#include "train/executor.h"
#include "train/model_store.h"
#include "train/sequence_mixes.h"
#include "train/step_planner.h"
#include "train/store_state.h"

namespace longspan {

enum class Plans { kPlanner, kHome, kRandom };

// Which experts the tokens like, beside what the router says.
enum class Skew { kUniform, kFourfold, kOneExpert, kIdleRank };

struct Case {
  ModelFamily family = ModelFamily::kLlama;
  bool tied = false;
  int ranks = 1;
  int chunks = 1;
  int band = 1;
  StoredMode stored_mode = StoredMode::kKeep;
  StoredMode inner_mode = StoredMode::kKeep;
  int dedicated = 0;
  int shard_group = 1;
  Plans plans = Plans::kPlanner;
  int micro_batches = 1;
  int head_dim = 6;
  // Of hybrids.
  int expert_group = 1;
  int64_t expert_pairs = 1 << 20;  // most that travel at once
  Skew skew = Skew::kUniform;
  uint64_t seed = 0;

  bool hybrid() const {
    return family == ModelFamily::kGlm5Next || family == ModelFamily::kKimiLinear;
  }
};

inline std::string describe(const Case& c) {
  return text("seed ", c.seed, ": ", model_family_name(c.family), c.tied ? " tied" : "", ", ranks ",
              c.ranks, ", chunks ", c.chunks, ", band ", c.band, ", ",
              stored_mode_name(c.stored_mode), "/", stored_mode_name(c.inner_mode), ", dedicated ",
              c.dedicated, ", shard group ", c.shard_group, ", plans ", static_cast<int>(c.plans),
              ", micro-batches ", c.micro_batches, ", expert group ", c.expert_group,
              ", expert pairs ", c.expert_pairs, ", skew ", static_cast<int>(c.skew));
}

// Every kind of mix, with and without experts; 16 keys selected, so that longer documents drop
// some.
inline ModelSpec tiny_hybrid_spec(const Case& c) {
  const bool glm = c.family == ModelFamily::kGlm5Next;
  ModelSpec spec = preset_spec(glm ? "glm53_flash_tiny" : "kimi_linear_tiny");
  const MixKind other = glm ? MixKind::kSparseAttention : MixKind::kAttention;
  spec.layer_kinds = {
      {MixKind::kLinearAttention, false}, {other, true}, {MixKind::kLinearAttention, true}};
  spec.num_layers = 3;
  spec.vocab_size = 23;
  spec.hidden_size = 16;
  spec.intermediate_size = 24;
  spec.num_query_heads = spec.num_kv_heads = 3;
  spec.linear_attention.num_heads = 3;
  spec.linear_attention.head_dim = 5;
  spec.latent_attention.num_heads = 3;
  spec.latent_attention.q_lora_rank = glm ? 8 : 0;
  spec.latent_attention.kv_lora_rank = 7;
  spec.latent_attention.nope_dim = 6;
  spec.latent_attention.rope_dim = glm ? 0 : 2;
  spec.latent_attention.v_dim = 4;
  spec.head_dim = spec.latent_attention.qk_dim();
  if (glm) spec.index = {.num_heads = 2, .head_dim = 6, .topk = 16, .pool = 4};
  spec.experts.num_experts = 24;
  spec.experts.top_k = 2;
  spec.experts.width = 8;
  spec.initializer_range = 0.5;
  return spec;
}

inline ModelSpec tiny_spec(const Case& c) {
  if (c.hybrid()) return tiny_hybrid_spec(c);
  ModelSpec spec = preset_spec(c.family == ModelFamily::kLlama ? "llama_tiny" : "qwen3_tiny");
  spec.vocab_size = 23;
  spec.hidden_size = 16;
  spec.intermediate_size = 24;
  spec.num_layers = 2;
  spec.num_query_heads = 4;
  spec.num_kv_heads = 2;
  spec.head_dim = c.head_dim;
  spec.tied_embeddings = c.tied;
  spec.initializer_range = 0.5;
  return spec;
}

inline MicroBatch random_micro_batch(RandomStream& random, int64_t vocabulary) {
  MicroBatch batch;
  batch.document_begins = {0};
  const auto documents = random.between(1, 6);
  for (int64_t document = 0; document < documents; ++document) {
    const int64_t kind = random.between(0, 3);
    const int64_t length = kind == 0   ? random.between(1, 3)
                           : kind == 1 ? random.between(126, 260)
                                       : random.between(1, 90);
    batch.pieces.push_back({document, {0, length}});
    batch.names.push_back(text("document ", document));
    for (int64_t at = 0; at < length; ++at) {
      batch.tokens.push_back(static_cast<int32_t>(random.between(0, vocabulary - 1)));
    }
    batch.document_begins.push_back(batch.size());
  }
  for (size_t document = 0; document + 1 < batch.document_begins.size(); ++document) {
    const int64_t end = batch.document_begins[document + 1];
    for (int64_t at = batch.document_begins[document]; at < end; ++at) {
      const bool predicts = at + 1 < end;
      batch.targets.push_back(predicts ? batch.tokens[static_cast<size_t>(at) + 1] : -1);
      batch.weights.push_back(predicts ? static_cast<float>(random.between(0, 3)) : 0.0F);
      batch.weight_sum += double{batch.weights.back()};
    }
  }
  return batch;
}

inline std::vector<ChunkPlans> other_plans(const Case& c, const TokenLayout& layout) {
  if (c.plans == Plans::kRandom) return random_chunk_plans(layout, c.seed, {.max_tasks = 6});
  return home_plans(layout);
}

// Links of many speeds, so that plans of many kinds come out: at home, balanced, keys shared, in
// bands, relayed.
inline PlanningCosts planning_costs(const Case& c, const ModelSpec& spec) {
  const AttentionSizes shape{.query_heads = spec.num_query_heads,
                             .key_heads = spec.num_kv_heads,
                             .key_width = spec.head_dim,
                             .value_width = spec.head_dim};
  const double link_bytes_per_s = 1e6 * static_cast<double>(int64_t{1} << (c.seed % 12));
  return pair_costs(shape, 1e9, link_bytes_per_s, c.ranks);
}

inline std::vector<PlannedMicroBatch> make_batches(const Case& c, const ModelSpec& spec) {
  RandomStream random(c.seed, "batches");
  StepPlannerOptions options{.chunks = c.chunks};
  options.token_shares.assign(static_cast<size_t>(c.ranks), 1.0);
  options.costs = planning_costs(c, spec);
  options.costs.speed.assign(static_cast<size_t>(c.ranks), c.dedicated > 0 ? 0.0 : 1.0);
  for (int server = c.ranks - c.dedicated; server < c.ranks; ++server) {
    options.token_shares[static_cast<size_t>(server)] = 0.0;
    options.costs.speed[static_cast<size_t>(server)] = 1.0;
  }
  std::vector<PlannedMicroBatch> batches;
  for (int idx = 0; idx < c.micro_batches; ++idx) {
    PlannedMicroBatch batch =
        plan_micro_batch(random_micro_batch(random, spec.vocab_size), options);
    if (c.plans != Plans::kPlanner) batch.plans = other_plans(c, batch.layout);
    for (const ChunkPlans& plans : batch.plans) {
      verify_plan(batch.layout, plans.forward);
      verify_plan(batch.layout, plans.backward);
    }
    batches.push_back(std::move(batch));
  }
  return batches;
}

struct Outcome {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
  StepChoices choices;  // of cases with one micro-batch
  int64_t waits = 0;    // of rank 0 in the step, by RunOn::count_waits
};

struct RunOn {
  at::ScalarType type = at::kDouble;
  at::Device device = at::kCPU;
  // Weights rounded as those of a run in bfloat16 are, whatever the type of this run.
  bool rounded_weights = false;
  const StepChoices* given = nullptr;  // cases with one micro-batch
  int64_t (*count_waits)() = nullptr;  // how often this thread has waited for its device so far
};

inline void round_to_bfloat16(const ParameterTable& table, ParameterStore& store,
                              Communicator& comm) {
  for (int64_t unit = 0; unit < store.layout().num_units(); ++unit) {
    const Range shard = store.layout().shard(unit, store.rank());
    for (const FlatSlice& slice : store.layout().slices(unit, shard)) {
      if (table.parameters()[static_cast<size_t>(slice.parameter)].keep_float32) continue;
      const int64_t begin = slice.flat_begin - shard.begin;
      std::visit(
          [](auto values) {
            for (auto& value : values) {
              value = static_cast<std::decay_t<decltype(value)>>(
                  static_cast<float>(at::BFloat16(static_cast<float>(value))));
            }
          },
          sub_span(store.shard(unit), {begin, begin + slice.elements.size()}));
    }
  }
  store.refresh_weights("rounded weights");
  comm.barrier("rounded weights");
}

// What this rank chose, into the tensors of the whole line; ranks have rows of their own.
inline void add_choices(const std::vector<StepTotals::Choices>& made,
                        std::map<int, at::Tensor>& by_layer) {
  for (const StepTotals::Choices& part : made) {
    by_layer.at(part.layer)
        .narrow(0, part.line.begin, part.line.size())
        .narrow(1, 0, part.ids.size(1))
        .copy_(part.ids);
  }
}

inline StepChoices no_choices(const ModelSpec& spec, int64_t tokens) {
  StepChoices choices;
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    const LayerKind kind = spec.layer_kind(layer);
    const auto none = [&](int64_t width) { return at::full({tokens, width}, -1, at::kInt); };
    if (kind.mix == MixKind::kSparseAttention) {
      choices.pools[layer] = none(spec.index.selected_pools());
    }
    if (kind.has_experts) choices.experts[layer] = none(spec.experts.top_k);
  }
  return choices;
}

inline double selection_bias(Skew skew, int64_t expert, int64_t experts) {
  switch (skew) {
    case Skew::kUniform:
      return 0;
    case Skew::kFourfold:
      return expert < experts / 6 ? 0.4 : 0;
    case Skew::kOneExpert:
      return expert == 7 ? 10 : 0;
    case Skew::kIdleRank:  // of any group of more than one rank, the first has nothing to do
      return expert < experts / 2 ? -10 : 0;
  }
  throw InternalError("unknown skew");
}

inline void fill_case(const Case& c, const ModelSpec& spec, const ParameterTable& table,
                      ParameterStore& store, Communicator& comm) {
  fill_weights(store, comm, "random weights",
               [&](ParameterId id, Range elements, const RealSpan& destination) {
                 const Parameter& parameter = table.parameters()[static_cast<size_t>(id)];
                 initialize_parameter(parameter, /*seed=*/7, elements, destination);
                 if (!parameter.name.ends_with("e_score_correction_bias")) return;
                 std::visit(
                     [&](auto values) {
                       for (int64_t i = 0; i < elements.size(); ++i) {
                         values[static_cast<size_t>(i)] =
                             static_cast<std::decay_t<decltype(values[0])>>(selection_bias(
                                 c.skew, elements.begin + i, spec.experts.num_experts));
                       }
                     },
                     destination);
               });
}

inline Outcome run_case(const Case& c, const RunOn& on = {}) {
  const ModelSpec spec = tiny_spec(c);
  const std::vector<PlannedMicroBatch> batches = make_batches(c, spec);
  std::vector<MicroBatchPlan> micro_batches;
  double weight_sum = 0;
  for (const PlannedMicroBatch& batch : batches) {
    micro_batches.push_back({&batch.layout, &batch.plans});
    weight_sum += batch.data.weight_sum;
  }
  const ScheduleOptions options{.num_layers = static_cast<int>(spec.num_layers),
                                .layers = scheduled_layers(spec),
                                .band_chunks = c.band,
                                .stored_mode = c.stored_mode,
                                .inner_mode = c.inner_mode,
                                .shard_group = c.shard_group,
                                .expert_group = c.expert_group,
                                .tied_embeddings = spec.tied_embeddings};
  std::vector<StepSchedule> schedules;
  for (int rank = 0; rank < c.ranks; ++rank) {
    schedules.push_back(build_step_schedule(options, micro_batches, rank));
  }
  verify_schedules(options, micro_batches, schedules);
  Outcome outcome;
  const bool keep_choices = c.hybrid() && c.micro_batches == 1;
  if (keep_choices) outcome.choices = no_choices(spec, batches[0].data.size());
  const RunRanksOptions ranks{.stall_timeout_s = 60, .device_memory = device_memory(on.device)};
  run_ranks(c.ranks, ranks, [&](Communicator& comm) {
    const at::Device device = device_of_rank(on.device, comm.rank());
    const DeviceThread thread(device);
    const auto model = make_model(spec, at::TensorOptions(on.type).device(device), c.expert_group);
    ParameterStore store = make_parameter_store(model->parameters(), comm,
                                                {.shard_group = c.shard_group,
                                                 .expert_group = c.expert_group,
                                                 .float64 = on.type == at::kDouble,
                                                 .bfloat16 = on.type == at::kBFloat16,
                                                 .device = device});
    fill_case(c, spec, model->parameters(), store, comm);
    if (on.rounded_weights) round_to_bfloat16(model->parameters(), store, comm);
    Executor executor(*model, store, comm);
    const int64_t waits_before = on.count_waits != nullptr ? on.count_waits() : 0;
    const StepTotals totals = executor.run(schedules[static_cast<size_t>(comm.rank())], batches,
                                           {.loss_scale = weight_sum > 0 ? 1 / weight_sum : 1,
                                            .max_expert_pairs_per_chunk = c.expert_pairs,
                                            .given_choices = on.given,
                                            .keep_choices = keep_choices});
    if (on.count_waits != nullptr && comm.rank() == 0) {
      outcome.waits = on.count_waits() - waits_before;
    }
    if (keep_choices) {
      add_choices(totals.pools, outcome.choices.pools);
      add_choices(totals.experts, outcome.choices.experts);
    }
    std::vector<double> loss = {totals.weighted_loss_sum};
    comm.all_reduce_sum(loss, "loss");
    for (const Parameter& parameter : store.parameters()) {
      const at::Tensor gradient = store.gradient_tensor(parameter.name, "gradients").clone();
      if (comm.rank() == 0) outcome.gradients[parameter.name] = gradient;
    }
    if (comm.rank() == 0) outcome.loss = loss[0];
  });
  // Where nothing had to be chosen, nothing is given either.
  std::erase_if(outcome.choices.pools, [](const auto& of_layer) {
    return of_layer.second.max().template item<int32_t>() < 0;
  });
  return outcome;
}

}  // namespace longspan
