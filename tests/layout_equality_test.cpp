// Any layout computes what one rank in one piece computes: loss and every gradient, in float64.
//
// Random ragged batches over ranks, chunks, bands, stored and inner modes, in-place and dedicated
// servers, shard groups, micro-batches, and plans: the planner's, the home plan, and random valid
// ones with tiles, partial results and relays. Every pair of values occurs. Tolerance: float64 sums
// of at most a few thousand terms, reordered: 1e-10 relative per tensor.
#include <ATen/core/Tensor.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/sub.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/random.h"
#include "comm/run_ranks.h"
#include "model/transformer_model.h"
#include "pairwise_cases.h"
#include "planner/home_plan.h"
#include "planner/plan_verifier.h"
#include "planner/random_plan.h"
#include "schedule/schedule_verifier.h"
#include "spec/presets.h"
#include "train/executor.h"
#include "train/model_store.h"
#include "train/step_planner.h"

namespace longspan {
namespace {

constexpr double kTolerance = 1e-10;
constexpr int kShards = 4;  // ctest runs them as separate programs
constexpr uint64_t kCasesPerShard = 80;

enum class Plans { kPlanner, kHome, kRandom };

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
  uint64_t seed = 0;
};

std::string describe(const Case& c) {
  return text("seed ", c.seed, ": ", model_family_name(c.family), c.tied ? " tied" : "", ", ranks ",
              c.ranks, ", chunks ", c.chunks, ", band ", c.band, ", ",
              stored_mode_name(c.stored_mode), "/", stored_mode_name(c.inner_mode), ", dedicated ",
              c.dedicated, ", shard group ", c.shard_group, ", plans ", static_cast<int>(c.plans),
              ", micro-batches ", c.micro_batches);
}

const std::vector<Dimension> kDimensions = {
    {"family", 2}, {"tied", 2},      {"ranks", 5},       {"chunks", 4}, {"band", 3},
    {"modes", 6},  {"dedicated", 3}, {"shard group", 3}, {"plans", 3},  {"micro-batches", 2}};

Case to_case(const std::vector<int>& values, uint64_t seed) {
  using Mode = StoredMode;
  constexpr int kRanks[] = {1, 2, 3, 4, 8};
  constexpr int kChunks[] = {1, 2, 3, 5};
  constexpr std::pair<Mode, Mode> kModes[] = {
      {Mode::kKeep, Mode::kKeep},
      {Mode::kLayerInputsAttention, Mode::kKeep},
      {Mode::kLayerInputs, Mode::kKeep},
      {Mode::kContextOnly, Mode::kKeep},
      {Mode::kContextOnly, Mode::kLayerInputsAttention},
      {Mode::kContextOnly, Mode::kLayerInputs},
  };
  Case c;
  c.seed = seed;
  c.family = values[0] == 0 ? ModelFamily::kLlama : ModelFamily::kQwen3;
  c.tied = values[1] == 1;
  c.ranks = kRanks[values[2]];
  c.chunks = kChunks[values[3]];
  c.band = values[4] == 2 ? c.chunks : values[4] + 1;
  std::tie(c.stored_mode, c.inner_mode) = kModes[values[5]];
  c.dedicated = values[6];
  const int middle = c.ranks % 2 == 0 ? c.ranks / 2 : 1;
  c.shard_group = values[7] == 0 ? 1 : values[7] == 1 ? middle : c.ranks;
  c.plans = static_cast<Plans>(values[8]);
  c.micro_batches = values[9] + 1;
  return c;
}

bool is_allowed(const std::vector<int>& values) {
  const Case c = to_case(values, 0);
  return c.dedicated < c.ranks;
}

ModelSpec tiny_spec(const Case& c) {
  ModelSpec spec = preset_spec(c.family == ModelFamily::kLlama ? "llama_tiny" : "qwen3_tiny");
  spec.vocab_size = 23;
  spec.hidden_size = 16;
  spec.intermediate_size = 24;
  spec.num_layers = 2;
  spec.num_query_heads = 4;
  spec.num_kv_heads = 2;
  spec.head_dim = 6;
  spec.tied_embeddings = c.tied;
  spec.initializer_range = 0.5;
  return spec;
}

MicroBatch random_micro_batch(RandomStream& random, int64_t vocabulary) {
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

std::vector<ChunkPlans> other_plans(const Case& c, const TokenLayout& layout) {
  if (c.plans == Plans::kRandom) return random_chunk_plans(layout, c.seed, {.max_tasks = 6});
  std::vector<ChunkPlans> plans;
  for (int chunk = 0; chunk < layout.num_chunks(); ++chunk) {
    plans.push_back({home_plan(layout, chunk, Direction::kForward),
                     home_plan(layout, chunk, Direction::kBackward)});
  }
  return plans;
}

// Links of many speeds, so that plans of many kinds come out: at home, balanced, keys shared, in
// bands, relayed.
PlanningCosts planning_costs(const Case& c, const ModelSpec& spec) {
  const AttentionShape shape{.query_heads = spec.num_query_heads,
                             .key_heads = spec.num_kv_heads,
                             .key_width = spec.head_dim,
                             .value_width = spec.head_dim};
  const double link_bytes_per_s = 1e6 * static_cast<double>(int64_t{1} << (c.seed % 12));
  return pair_costs(shape, 1e9, link_bytes_per_s, c.ranks);
}

std::vector<PlannedMicroBatch> make_batches(const Case& c, const ModelSpec& spec) {
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
};

Outcome run_case(const Case& c) {
  const ModelSpec spec = tiny_spec(c);
  const std::vector<PlannedMicroBatch> batches = make_batches(c, spec);
  std::vector<MicroBatchPlan> micro_batches;
  double weight_sum = 0;
  for (const PlannedMicroBatch& batch : batches) {
    micro_batches.push_back({&batch.layout, &batch.plans});
    weight_sum += batch.data.weight_sum;
  }
  const ScheduleOptions options{.num_layers = static_cast<int>(spec.num_layers),
                                .band_chunks = c.band,
                                .stored_mode = c.stored_mode,
                                .inner_mode = c.inner_mode,
                                .shard_group = c.shard_group,
                                .tied_embeddings = spec.tied_embeddings};
  std::vector<StepSchedule> schedules;
  for (int rank = 0; rank < c.ranks; ++rank) {
    schedules.push_back(build_step_schedule(options, micro_batches, rank));
  }
  verify_schedules(options, micro_batches, schedules);
  Outcome outcome;
  run_ranks(c.ranks, {.stall_timeout_s = 60}, [&](Communicator& comm) {
    const auto model = make_model(spec, at::kDouble);
    ParameterStore store = make_parameter_store(model->parameters(), comm,
                                                {.shard_group = c.shard_group, .float64 = true});
    fill_random(model->parameters(), /*seed=*/7, store, comm);
    Executor executor(*model, store, comm);
    const StepTotals totals = executor.run(schedules[static_cast<size_t>(comm.rank())], batches,
                                           {.loss_scale = weight_sum > 0 ? 1 / weight_sum : 1});
    std::vector<double> loss = {totals.weighted_loss_sum};
    comm.all_reduce_sum(loss, "loss");
    for (const Parameter& parameter : store.parameters()) {
      const at::Tensor gradient = store.gradient_tensor(parameter.name, "gradients").clone();
      if (comm.rank() == 0) outcome.gradients[parameter.name] = gradient;
    }
    if (comm.rank() == 0) outcome.loss = loss[0];
  });
  return outcome;
}

double norm(const at::Tensor& tensor) {
  return at::linalg_vector_norm(tensor, 2).item<double>();
}

void expect_equals_one_rank(const Case& c) {
  Case whole = c;
  whole.ranks = whole.chunks = whole.band = whole.shard_group = 1;
  whole.dedicated = 0;
  whole.stored_mode = StoredMode::kKeep;
  whole.plans = Plans::kPlanner;
  const Outcome expected = run_case(whole);
  const Outcome found = run_case(c);
  EXPECT_NEAR(found.loss, expected.loss, kTolerance * std::abs(expected.loss)) << describe(c);
  // A gradient that vanishes in exact arithmetic (queries that see one key only) is rounding noise
  // of the others: it is compared on the scale of 1e-4 of the whole gradient's norm.
  double square_sum = 0;
  for (const auto& [name, reference] : expected.gradients)
    square_sum += norm(reference) * norm(reference);
  const double floor = std::max(1e-4 * std::sqrt(square_sum), 1e-300);
  for (const auto& [name, reference] : expected.gradients) {
    const double error =
        norm(at::sub(found.gradients.at(name), reference)) / std::max(norm(reference), floor);
    EXPECT_LE(error, kTolerance) << name << ", " << describe(c);
  }
}

class LayoutEquality : public testing::TestWithParam<int> {};

TEST_P(LayoutEquality, EqualsOneRank) {
  PairwiseCases cases(kDimensions, is_allowed);
  const uint64_t first = kCasesPerShard * static_cast<uint64_t>(GetParam());
  for (uint64_t seed = 0; seed < first + kCasesPerShard; ++seed) {
    const Case c = to_case(cases.next(seed), seed);
    if (seed >= first) expect_equals_one_rank(c);
    if (testing::Test::HasFailure()) FAIL() << describe(c);
  }
}

INSTANTIATE_TEST_SUITE_P(Shard, LayoutEquality, testing::Range(0, kShards));

TEST(LayoutEqualityCases, ShowEveryPairOfValues) {
  PairwiseCases cases(kDimensions, is_allowed);
  for (uint64_t seed = 0; seed < kCasesPerShard * kShards; ++seed) cases.next(seed);
  EXPECT_EQ(cases.uncovered(), std::vector<std::string>{});
}

// Two runs of one layout give the same bits.
TEST(LayoutEqualityCases, SameLayoutSameBits) {
  PairwiseCases cases(kDimensions, is_allowed);
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const Case c = to_case(cases.next(seed), seed);
    const Outcome first = run_case(c);
    const Outcome second = run_case(c);
    EXPECT_EQ(first.loss, second.loss) << describe(c);
    for (const auto& [name, gradient] : first.gradients) {
      EXPECT_TRUE(gradient.equal(second.gradients.at(name))) << name << ", " << describe(c);
    }
  }
}

}  // namespace
}  // namespace longspan
