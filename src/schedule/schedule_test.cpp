#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "base/random.h"
#include "schedule/schedule_verifier.h"
#include "schedule/step_schedule.h"

namespace longspan {
namespace {

// A plan with rounds and groups in the right shape for scheduling; which rows it moves does not
// matter here.
AttentionPlan shape_of_plan(const TokenLayout& layout, Direction direction, int chunk,
                            RandomStream& random) {
  const int ranks = layout.num_ranks();
  AttentionPlan plan{.direction = direction, .chunk = chunk, .servers = {}, .out = {}, .back = {}};
  plan.out.resize(random.below(4));
  plan.back.resize(random.below(3));
  for (auto* leg : {&plan.out, &plan.back}) {
    for (Round& round : *leg) {
      for (int pair = 0; pair < 3 && ranks > 1; ++pair) {
        const int source = static_cast<int>(random.below(static_cast<uint64_t>(ranks)));
        const int step = static_cast<int>(1 + random.below(static_cast<uint64_t>(ranks - 1)));
        round.transfers.push_back(
            {.source = source, .destination = (source + step) % ranks, .line = {0, 1}});
      }
    }
  }
  for (int rank = 0; rank < ranks; ++rank) {
    ServerPlan server;
    for (int round = 0; round <= static_cast<int>(plan.out.size()); ++round) {
      if (random.below(2) == 0)
        server.groups.push_back({.after_round = round, .task_begin = 0, .task_end = 0});
    }
    plan.servers.push_back(server);
  }
  return plan;
}

struct Case {
  ScheduleOptions options;
  std::vector<TokenLayout> layouts;
  std::vector<std::vector<ChunkPlans>> plans;

  std::vector<MicroBatchPlan> micro_batches() const {
    std::vector<MicroBatchPlan> all;
    for (size_t idx = 0; idx < layouts.size(); ++idx) all.push_back({&layouts[idx], &plans[idx]});
    return all;
  }
  std::vector<StepSchedule> schedules() const {
    std::vector<StepSchedule> all;
    for (int rank = 0; rank < layouts[0].num_ranks(); ++rank) {
      all.push_back(build_step_schedule(options, micro_batches(), rank));
    }
    return all;
  }
};

Case random_case(uint64_t seed) {
  RandomStream random(seed, "schedule case");
  constexpr StoredMode kModes[] = {StoredMode::kKeep, StoredMode::kLayerInputsAttention,
                                   StoredMode::kLayerInputs, StoredMode::kContextOnly};
  Case made;
  const int ranks = static_cast<int>(random.between(1, 6));
  std::vector<int> groups;
  for (int size = 1; size <= ranks; ++size) {
    if (ranks % size == 0) groups.push_back(size);
  }
  const int layers = static_cast<int>(random.between(1, 3));
  std::vector<ScheduledLayer> kinds;  // none in every third case: a dense model
  for (int layer = 0; seed % 3 != 0 && layer < layers; ++layer) {
    kinds.push_back({.core_attention = random.below(3) == 0, .experts = random.below(2) == 0});
  }
  const int shard_group = groups[random.below(groups.size())];
  std::vector<int> expert_groups;
  for (const int size : groups) {
    if (size % shard_group == 0 || shard_group % size == 0) expert_groups.push_back(size);
  }
  made.options = {.num_layers = layers,
                  .layers = kinds,
                  .band_chunks = static_cast<int>(random.between(1, 4)),
                  .stored_mode = kModes[random.below(4)],
                  .inner_mode = kModes[random.below(3)],
                  .shard_group = shard_group,
                  .expert_group = expert_groups[random.below(expert_groups.size())],
                  .tied_embeddings = random.below(2) == 0,
                  .evaluate = random.below(5) == 0};
  const int chunks = static_cast<int>(random.between(1, 5));
  std::vector<double> shares(static_cast<size_t>(ranks), 1.0);
  const size_t dedicated = random.below(shares.size());  // trailing ranks without tokens
  for (size_t rank = shares.size() - dedicated; rank < shares.size(); ++rank) shares[rank] = 0;
  for (uint64_t micro_batch = 0; micro_batch < 1 + random.below(2); ++micro_batch) {
    made.layouts.push_back(TokenLayout::make({random.between(1, 3000), random.between(1, 700)},
                                             {.chunks = chunks, .shares = shares}));
    std::vector<ChunkPlans> plans;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      plans.push_back({shape_of_plan(made.layouts.back(), Direction::kForward, chunk, random),
                       shape_of_plan(made.layouts.back(), Direction::kBackward, chunk, random)});
    }
    made.plans.push_back(std::move(plans));
  }
  return made;
}

TEST(StepSchedule, VerifiesForEveryModeBandAndGroup) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const Case made = random_case(seed);
    EXPECT_NO_THROW(verify_schedules(made.options, made.micro_batches(), made.schedules()))
        << "seed " << seed;
  }
}

int64_t count(const StepSchedule& schedule, OperationKind kind, Pass pass) {
  return std::count_if(schedule.operations.begin(), schedule.operations.end(),
                       [&](const Operation& op) { return op.kind == kind && op.pass == pass; });
}

// The extra forwards of each mode are those of the design, counted in segments and attention
// passes.
TEST(StepSchedule, RecomputesWhatTheStoredModeSays) {
  const TokenLayout layout = TokenLayout::make({4096}, {.chunks = 4, .shares = {1.0}});
  RandomStream random(1, "plans");
  std::vector<ChunkPlans> plans;
  for (int chunk = 0; chunk < 4; ++chunk) {
    plans.push_back({shape_of_plan(layout, Direction::kForward, chunk, random),
                     shape_of_plan(layout, Direction::kBackward, chunk, random)});
  }
  const auto build = [&](StoredMode mode, StoredMode inner) {
    return build_step_schedule(
        {.num_layers = 3, .band_chunks = 2, .stored_mode = mode, .inner_mode = inner},
        {{&layout, &plans}}, 0);
  };
  struct Expected {
    StoredMode mode, inner;
    int64_t pre, attention, post;  // recomputed, of 4 chunks x 3 layers
  };
  using Mode = StoredMode;
  for (const Expected& expected : {Expected{Mode::kKeep, Mode::kKeep, 0, 0, 0},
                                   Expected{Mode::kLayerInputsAttention, Mode::kKeep, 12, 0, 12},
                                   Expected{Mode::kLayerInputs, Mode::kKeep, 12, 12, 12},
                                   // one of two bands again:
                                   Expected{Mode::kContextOnly, Mode::kKeep, 6, 6, 6},
                                   Expected{Mode::kContextOnly, Mode::kLayerInputs, 18, 18, 18}}) {
    const StepSchedule schedule = build(expected.mode, expected.inner);
    const auto name = stored_mode_name(expected.mode);
    EXPECT_EQ(count(schedule, OperationKind::kPreSegment, Pass::kRecompute), expected.pre) << name;
    EXPECT_EQ(count(schedule, OperationKind::kAttentionEnd, Pass::kRecompute), expected.attention)
        << name;
    EXPECT_EQ(count(schedule, OperationKind::kPostSegment, Pass::kRecompute), expected.post)
        << name;
    EXPECT_EQ(count(schedule, OperationKind::kHeadLoss, Pass::kBackward), 4) << name;
  }
}

// Where a layer's operation of that kind and pass stands; -1 if there is none.
int place(const StepSchedule& schedule, OperationKind kind, Pass pass, int layer) {
  for (size_t idx = 0; idx < schedule.operations.size(); ++idx) {
    const Operation& operation = schedule.operations[idx];
    if (operation.kind == kind && operation.pass == pass && operation.layer == layer)
      return static_cast<int>(idx);
  }
  return -1;
}

// A second queue hides them behind a layer only if nothing of that layer stands before the start or
// behind the end of what travels.
TEST(StepSchedule, WeightsComeALayerAheadAndGradientsLeaveALayerBehind) {
  using Kind = OperationKind;
  constexpr int kLayers = 4;
  const TokenLayout layout = TokenLayout::make({512}, {.chunks = 1, .shares = {1.0}});
  RandomStream random(1, "plans");
  const std::vector<ChunkPlans> plans = {{shape_of_plan(layout, Direction::kForward, 0, random),
                                          shape_of_plan(layout, Direction::kBackward, 0, random)}};
  const StepSchedule schedule =
      build_step_schedule({.num_layers = kLayers}, {{&layout, &plans}}, 0);
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto at = [&](Kind kind, Pass pass, int of) { return place(schedule, kind, pass, of); };
    const auto pre = [&](int of) { return at(Kind::kPreSegment, Pass::kForward, of); };
    const auto post = [&](int of) { return at(Kind::kPostBackward, Pass::kBackward, of); };
    const auto gather = [&](Pass pass, int of) {
      return at(Kind::kGatherWeights, pass, layer_unit(of));
    };
    if (layer + 1 < kLayers) {
      EXPECT_LT(gather(Pass::kForward, layer + 1), pre(layer)) << layer;
      EXPECT_LT(gather(Pass::kBackward, layer), post(layer + 1)) << layer;
    }
    if (layer + 2 < kLayers) {  // two layers at once, not three
      EXPECT_GT(gather(Pass::kForward, layer + 2), pre(layer)) << layer;
    }
    if (layer >= 1) {
      const int unit = layer_unit(layer);
      const int below = at(Kind::kPreBackward, Pass::kBackward, layer - 1);
      EXPECT_LT(at(Kind::kReduceGradients, Pass::kBackward, unit), post(layer - 1)) << layer;
      EXPECT_GT(at(Kind::kCloseGradients, Pass::kBackward, unit), below) << layer;
    }
    if (layer >= 2) {
      EXPECT_LT(at(Kind::kCloseGradients, Pass::kBackward, layer_unit(layer)), post(layer - 2))
          << layer;
    }
  }
}

// A mix runs again with layer_inputs only; experts run again whenever combine does. In context_only
// a mix's context needs its forward even in the last layer, whose post and experts then stand
// still.
TEST(StepSchedule, RecomputesMixesAndExpertsWhereTheyAreNeeded) {
  const TokenLayout layout = TokenLayout::make({4096}, {.chunks = 4, .shares = {1.0}});
  RandomStream random(2, "plans");
  std::vector<ChunkPlans> plans;
  for (int chunk = 0; chunk < 4; ++chunk) {
    plans.push_back({shape_of_plan(layout, Direction::kForward, chunk, random),
                     shape_of_plan(layout, Direction::kBackward, chunk, random)});
  }
  struct Expected {
    StoredMode mode, inner;
    int64_t first_mixes, mixes, first_experts, experts;  // of 4 chunks x 3 layers
  };
  using Mode = StoredMode;
  for (const Expected& expected :
       {Expected{Mode::kKeep, Mode::kKeep, 12, 0, 12, 0},
        Expected{Mode::kLayerInputsAttention, Mode::kKeep, 12, 0, 12, 12},
        Expected{Mode::kLayerInputs, Mode::kKeep, 12, 12, 12, 12},
        Expected{Mode::kContextOnly, Mode::kKeep, 12, 6, 10, 6},
        Expected{Mode::kContextOnly, Mode::kLayerInputs, 12, 18, 10, 18}}) {
    const ScheduleOptions options{.num_layers = 3,
                                  .layers = std::vector<ScheduledLayer>(3, {false, true}),
                                  .band_chunks = 2,
                                  .stored_mode = expected.mode,
                                  .inner_mode = expected.inner};
    const StepSchedule schedule = build_step_schedule(options, {{&layout, &plans}}, 0);
    const auto name = stored_mode_name(expected.mode);
    using Kind = OperationKind;
    EXPECT_EQ(count(schedule, Kind::kMix, Pass::kForward), expected.first_mixes) << name;
    EXPECT_EQ(count(schedule, Kind::kMix, Pass::kRecompute), expected.mixes) << name;
    EXPECT_EQ(count(schedule, Kind::kMix, Pass::kBackward), 12) << name;
    EXPECT_EQ(count(schedule, Kind::kExperts, Pass::kForward), expected.first_experts) << name;
    EXPECT_EQ(count(schedule, Kind::kExperts, Pass::kRecompute), expected.experts) << name;
    EXPECT_EQ(count(schedule, Kind::kExperts, Pass::kBackward), 12) << name;
  }
}

// Each way to break a schedule is noticed.
TEST(ScheduleVerifier, CatchesBrokenSchedules) {
  int broken = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Case made = random_case(seed);
    auto schedules = made.schedules();
    RandomStream random(seed, "mutation");
    auto& operations = schedules[random.below(schedules.size())].operations;
    const auto idx = static_cast<int64_t>(random.below(operations.size()));
    Operation& operation = operations[static_cast<size_t>(idx)];
    const auto kind = random.below(4);
    if (kind == 0) {
      // Removing an operation leaves a reader, a partner, an undropped buffer or wrong indices
      // behind.
      if (operation.writes.empty() && operation.drops.empty()) continue;
      operations.erase(operations.begin() + idx);
    } else if (kind == 1) {
      if (operation.drops.empty()) continue;
      operation.drops.pop_back();
    } else if (kind == 2) {
      if (operation.reads.empty()) continue;
      operation.drops.push_back(operation.reads.front());
      operation.drops.push_back(operation.reads.front());
    } else {
      if (operation.waits_for.empty()) continue;
      operation.waits_for.pop_back();
    }
    ++broken;
    EXPECT_THROW(verify_schedules(made.options, made.micro_batches(), schedules), InternalError)
        << "seed " << seed << " kind " << kind;
  }
  EXPECT_GT(broken, 150);
}

// Two ranks whose collectives stand in different order would wait for ever.
TEST(ScheduleVerifier, CatchesDeadlock) {
  const TokenLayout layout = TokenLayout::make({512}, {.chunks = 1, .shares = {1.0, 1.0}});
  RandomStream random(7, "deadlock");
  std::vector<ChunkPlans> plans = {{shape_of_plan(layout, Direction::kForward, 0, random),
                                    shape_of_plan(layout, Direction::kBackward, 0, random)}};
  plans[0].forward.out.assign(1, Round{{{.source = 1, .destination = 0, .line = {0, 1}}}});
  const ScheduleOptions options{.num_layers = 1, .shard_group = 2};
  const std::vector<MicroBatchPlan> micro_batches = {{&layout, &plans}};
  std::vector<StepSchedule> schedules = {build_step_schedule(options, micro_batches, 0),
                                         build_step_schedule(options, micro_batches, 1)};
  EXPECT_NO_THROW(verify_schedules(options, micro_batches, schedules));
  auto no_send = schedules;
  std::erase_if(no_send[1].operations, [](const Operation& operation) {
    return operation.kind == OperationKind::kAttentionOutStart && operation.pass == Pass::kForward;
  });
  EXPECT_THROW(verify_schedules(options, micro_batches, no_send), InternalError);
}

TEST(StoredMode, NamesRoundTrip) {
  for (const auto name : {"keep", "layer_inputs_attention", "layer_inputs", "context_only"}) {
    EXPECT_EQ(stored_mode_name(stored_mode_from_name(name)), name);
  }
  EXPECT_THROW(stored_mode_from_name("all"), UserError);
}

}  // namespace
}  // namespace longspan
