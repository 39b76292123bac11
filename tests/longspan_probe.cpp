// Shows the inside of one step to the Python tests: logits of all tokens, the loss sum and every
// parameter gradient of a model folder on given documents, for any layout.
//
//   longspan_probe MODEL_FOLDER DOCUMENTS.json OUT.safetensors [--dtype=float64] [--ranks=3]
//   [--chunks=2] ...
//
// DOCUMENTS.json is a list of lists of token ids. The loss is the plain sum of token losses.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <CLI/CLI.hpp>

#include <cstring>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "comm/run_ranks.h"
#include "data/memory_source.h"
#include "data/micro_batch.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "formats/safetensors_writer.h"
#include "model/transformer_model.h"
#include "spec/hf_config.h"
#include "train/executor.h"
#include "train/model_store.h"
#include "train/sequence_mixes.h"
#include "train/store_state.h"

namespace longspan {
namespace {

struct ProbeArguments {
  std::string model;
  std::string documents;
  std::string output;
  std::string dtype = "float32";
  int ranks = 1;
  int chunks = 1;
  int band = 1;
  int shard_group = 1;
  int expert_group = 1;
  int expert_chunks = 1;  // about: the bound that gives so many to even choices
  std::string choices;
  std::string stored_mode = "keep";
  std::string inner_mode = "keep";
};

struct Found {
  std::map<std::string, at::Tensor> gradients;
  std::vector<double> logits;  // [tokens, vocabulary]
  double loss = 0;
  std::map<std::string, at::Tensor> choices;  // "pools.layer_3": [tokens, chosen]
};

MicroBatch one_micro_batch(const std::string& path, int64_t vocabulary) {
  std::vector<DocumentContent> contents;
  PackedMicroBatch packed;
  for (const Json& document : read_json(path)) {
    contents.push_back({document.get<std::vector<int32_t>>(), {}});
    packed.pieces.push_back({std::ssize(packed.pieces), {0, std::ssize(contents.back().tokens)}});
  }
  return materialize(MemorySource(std::move(contents)), packed, {.vocabulary_size = vocabulary});
}

std::string choice_name(const std::string& kind, int64_t layer) {
  return text(kind, ".layer_", layer);
}

// Nobody's rows yet: -1.
void make_choice_tensors(const ModelSpec& spec, int64_t tokens,
                         std::map<std::string, at::Tensor>& choices) {
  const auto add = [&](const std::string& kind, int64_t layer, int64_t width) {
    choices[choice_name(kind, layer)] = at::full({tokens, width}, -1, at::kInt);
  };
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    const LayerKind kind = spec.layer_kind(layer);
    if (kind.mix == MixKind::kSparseAttention) add("pools", layer, spec.index.selected_pools());
    if (kind.has_experts) add("experts", layer, spec.experts.top_k);
  }
}

void add_choices(const std::vector<StepTotals::Choices>& made,
                 std::map<std::string, at::Tensor>& choices, const std::string& kind) {
  for (const StepTotals::Choices& part : made) {
    choices.at(choice_name(kind, part.layer))
        .narrow(0, part.line.begin, part.line.size())
        .narrow(1, 0, part.ids.size(1))
        .copy_(part.ids);
  }
}

StepChoices read_choices(const std::string& path, int64_t num_layers) {
  StepChoices choices;
  if (path.empty()) return choices;
  const SafetensorsFile file(path);
  const auto read = [&](const std::string& name, int64_t layer,
                        std::map<int, at::Tensor>& by_layer) {
    if (!file.contains(name)) return;
    const TensorView tensor = file.tensor(name);
    at::Tensor ids = at::empty(tensor.description.shape, at::kInt);
    std::memcpy(ids.mutable_data_ptr(), tensor.bytes.data(), ids.nbytes());
    by_layer[static_cast<int>(layer)] = ids;
  };
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    read(choice_name("pools", layer), layer, choices.pools);
    read(choice_name("experts", layer), layer, choices.experts);
  }
  return choices;
}

Found probe(const ProbeArguments& arguments) {
  const ModelSpec spec = load_hf_config(arguments.model);
  const bool float64 = arguments.dtype == "float64";
  StepPlannerOptions planner{.chunks = arguments.chunks};
  planner.token_shares.assign(static_cast<size_t>(arguments.ranks), 1.0);
  planner.costs = alike_costs(arguments.ranks);
  std::vector<PlannedMicroBatch> batches;
  batches.push_back(
      plan_micro_batch(one_micro_batch(arguments.documents, spec.vocab_size), planner));
  const std::vector<MicroBatchPlan> micro_batches = {{&batches[0].layout, &batches[0].plans}};
  ScheduleOptions schedule{.num_layers = static_cast<int>(spec.num_layers),
                           .layers = scheduled_layers(spec),
                           .band_chunks = arguments.band,
                           .stored_mode = stored_mode_from_name(arguments.stored_mode),
                           .inner_mode = stored_mode_from_name(arguments.inner_mode),
                           .shard_group = arguments.shard_group,
                           .expert_group = arguments.expert_group,
                           .tied_embeddings = spec.tied_embeddings};
  Found found;
  found.logits.resize(static_cast<size_t>(batches[0].data.size() * spec.vocab_size));
  const StepChoices given = read_choices(arguments.choices, spec.num_layers);
  const int64_t expert_pairs = std::max<int64_t>(
      1, batches[0].data.size() * spec.experts.top_k / (arguments.ranks * arguments.expert_chunks));
  make_choice_tensors(spec, batches[0].data.size(), found.choices);
  run_ranks(arguments.ranks, {.stall_timeout_s = 120}, [&](Communicator& comm) {
    const auto model = make_model(spec, float64 ? at::kDouble : at::kFloat, arguments.expert_group);
    ParameterStore store = make_parameter_store(model->parameters(), comm,
                                                {.shard_group = arguments.shard_group,
                                                 .expert_group = arguments.expert_group,
                                                 .float64 = float64});
    load_hf_weights(store, comm, arguments.model);
    Executor executor(*model, store, comm);
    ScheduleOptions evaluate = schedule;
    evaluate.evaluate = true;
    const StepTotals eval = executor.run(
        build_step_schedule(evaluate, micro_batches, comm.rank()), batches,
        {.keep_logits = true, .max_expert_pairs_per_chunk = expert_pairs, .given_choices = &given});
    for (const StepTotals::TokenLosses& part :
         eval.token_losses) {  // ranks write rows of their own
      std::copy(part.logits.begin(), part.logits.end(),
                found.logits.begin() + part.line.begin * spec.vocab_size);
    }
    const StepTotals totals =
        executor.run(build_step_schedule(schedule, micro_batches, comm.rank()), batches,
                     {.max_expert_pairs_per_chunk = expert_pairs,
                      .given_choices = &given,
                      .keep_choices = true});
    add_choices(totals.pools, found.choices, "pools");  // ranks write rows of their own
    add_choices(totals.experts, found.choices, "experts");
    std::vector<double> loss = {totals.weighted_loss_sum};
    comm.all_reduce_sum(loss, "loss");
    for (const Parameter& parameter : store.parameters()) {
      const at::Tensor gradient =
          store.gradient_tensor(parameter.name, "gradients").to(at::kDouble).clone();
      if (comm.rank() == 0) found.gradients[parameter.name] = gradient;
    }
    if (comm.rank() == 0) found.loss = loss[0];
  });
  return found;
}

void write(const Found& found, int64_t vocabulary, const std::string& path) {
  std::vector<TensorDescription> declarations = {
      {"loss", StoredDtype::kF64, {1}},
      {"logits", StoredDtype::kF64, {std::ssize(found.logits) / vocabulary, vocabulary}}};
  for (const auto& [name, ids] : found.choices) {
    declarations.push_back({name, StoredDtype::kI32, ids.sizes().vec()});
  }
  for (const auto& [name, gradient] : found.gradients) {
    declarations.push_back({"gradient." + name, StoredDtype::kF64, gradient.sizes().vec()});
  }
  SafetensorsWriter writer(path, declarations);
  writer.write("loss", std::as_bytes(std::span(&found.loss, 1)));
  writer.write("logits", std::as_bytes(std::span(found.logits)));
  for (const auto& [name, ids] : found.choices) {
    writer.write(name, std::as_bytes(std::span(ids.const_data_ptr<int32_t>(),
                                               static_cast<size_t>(ids.numel()))));
  }
  for (const auto& [name, gradient] : found.gradients) {
    writer.write("gradient." + name,
                 std::as_bytes(std::span(gradient.const_data_ptr<double>(),
                                         static_cast<size_t>(gradient.numel()))));
  }
  writer.finish();
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) {
  CLI::App app("Logits, loss and gradients of one step, for tests.");
  longspan::ProbeArguments arguments;
  app.add_option("model", arguments.model)->required();
  app.add_option("documents", arguments.documents)->required();
  app.add_option("output", arguments.output)->required();
  app.add_option("--dtype", arguments.dtype);
  app.add_option("--ranks", arguments.ranks);
  app.add_option("--chunks", arguments.chunks);
  app.add_option("--band", arguments.band);
  app.add_option("--shard-group", arguments.shard_group);
  app.add_option("--expert-group", arguments.expert_group);
  app.add_option("--expert-chunks", arguments.expert_chunks);
  app.add_option("--choices", arguments.choices);
  app.add_option("--stored-mode", arguments.stored_mode);
  app.add_option("--inner-mode", arguments.inner_mode);
  CLI11_PARSE(app, argc, argv);
  try {
    const longspan::Found found = longspan::probe(arguments);
    longspan::write(found, longspan::load_hf_config(arguments.model).vocab_size, arguments.output);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "longspan_probe: " << error.what() << std::endl;
    return 2;
  }
}
