// Whole training steps on a GPU: the loss and every gradient of any layout equal those of one rank
// on CPU in float64; bits repeat; and fifty steps follow the CPU's curve.
#include <cmath>

#include "case_errors.h"
#include "gpu_test.h"

namespace longspan {
namespace {

class GpuTraining : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    set_deterministic(true);
  }
};

Case random_case(uint64_t seed, int ranks) {
  using Mode = StoredMode;
  constexpr std::pair<Mode, Mode> kModes[] = {
      {Mode::kKeep, Mode::kKeep},
      {Mode::kLayerInputsAttention, Mode::kKeep},
      {Mode::kLayerInputs, Mode::kKeep},
      {Mode::kContextOnly, Mode::kLayerInputsAttention},
  };
  RandomStream random(seed, "GPU case");
  Case c{.family = random.below(2) == 0 ? ModelFamily::kLlama : ModelFamily::kQwen3,
         .tied = random.below(2) == 0,
         .ranks = ranks,
         .chunks = static_cast<int>(random.between(1, 3)),
         .plans = static_cast<Plans>(random.below(3)),
         .micro_batches = static_cast<int>(random.between(1, 2)),
         .head_dim = 8,
         .seed = seed};
  c.band = static_cast<int>(random.between(1, c.chunks));
  std::tie(c.stored_mode, c.inner_mode) = kModes[random.below(4)];
  if (ranks > 1) {
    c.dedicated = static_cast<int>(random.below(2));
    constexpr int kGroups[] = {1, 2, 4};
    c.shard_group = kGroups[random.below(3)];
  }
  return c;
}

void expect_equals_cpu(at::ScalarType type, double tolerance) {
  for (const int ranks : {1, 4}) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      const Case c = random_case(seed, ranks);
      SCOPED_TRACE(describe(c));
      const Outcome expected = run_case(whole(c));
      const Outcome found = run_case(c, {.type = type, .device = kGpu});
      EXPECT_NEAR(found.loss, expected.loss, tolerance * std::abs(expected.loss));
      for (const auto& [name, gradient] : expected.gradients) {
        EXPECT_LE(gradient_error(found, expected, name), tolerance) << name;
      }
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST_F(GpuTraining, Float64EqualsCpu) {
  expect_equals_cpu(at::kDouble, 1e-10);
}

// Sums of a few thousand float32 terms through two layers with large random weights.
TEST_F(GpuTraining, Float32EqualsCpu) {
  expect_equals_cpu(at::kFloat, 1e-3);
}

// The bound comes from the function itself: in float64 on CPU, rounding every weight to bfloat16
// once moves a gradient by some amount. On the GPU, with those same rounded weights, activations
// and their gradients are rounded on their way: about forty times as often as a weight of a layer,
// independently, so by about sqrt(40) = 6 times that amount. A gradient that the weights' rounding
// happens to move little counts with the mean of all.
TEST_F(GpuTraining, Bfloat16EqualsFloat64WithinItsRounding) {
  constexpr double kFactor = 6;
  for (const int ranks : {1, 4}) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      const Case c = random_case(seed, ranks);
      SCOPED_TRACE(describe(c));
      const Outcome exact = run_case(whole(c));
      const Outcome expected = run_case(whole(c), {.rounded_weights = true});
      const Outcome found = run_case(c, {.type = at::kBFloat16, .device = kGpu});
      EXPECT_NEAR(found.loss, expected.loss, 0.01 * std::abs(expected.loss));
      double mean = 0;
      for (const auto& [name, gradient] : expected.gradients) {
        mean += gradient_error(exact, expected, name);
      }
      mean /= static_cast<double>(expected.gradients.size());
      for (const auto& [name, gradient] : expected.gradients) {
        const double moved = std::max(mean, gradient_error(exact, expected, name));
        EXPECT_LE(gradient_error(found, expected, name), kFactor * moved) << name;
      }
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST_F(GpuTraining, SameBitsOnRepeat) {
  for (const int ranks : {1, 4}) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      const Case c = random_case(seed, ranks);
      const Outcome first = run_case(c, {.type = at::kBFloat16, .device = kGpu});
      const Outcome second = run_case(c, {.type = at::kBFloat16, .device = kGpu});
      EXPECT_EQ(first.loss, second.loss) << describe(c);
      for (const auto& [name, gradient] : first.gradients) {
        EXPECT_TRUE(gradient.equal(second.gradients.at(name))) << name << ", " << describe(c);
      }
    }
  }
}

// Documents whose tokens mostly follow from the one before.
MicroBatch learnable_batch(uint64_t step, int64_t vocabulary) {
  RandomStream random(step, "learnable");
  MicroBatch batch;
  batch.document_begins = {0};
  for (int64_t document = 0; document < 6; ++document) {
    const int64_t length = random.between(1, 400);
    int64_t token = random.between(0, vocabulary - 1);
    for (int64_t at = 0; at < length; ++at) {
      const int64_t next =
          random.below(5) == 0 ? random.between(0, vocabulary - 1) : (token * 5 + 3) % vocabulary;
      const bool predicts = at + 1 < length;
      batch.tokens.push_back(static_cast<int32_t>(token));
      batch.targets.push_back(predicts ? static_cast<int32_t>(next) : -1);
      batch.weights.push_back(predicts ? 1.0F : 0.0F);
      batch.weight_sum += double{batch.weights.back()};
      token = next;
    }
    batch.pieces.push_back({document, {0, length}});
    batch.names.push_back(text("document ", document));
    batch.document_begins.push_back(batch.size());
  }
  return batch;
}

struct TrainingRun {
  std::vector<double> losses;
  std::vector<int64_t> allocations;  // of the first rank's device before each step
};

// Step s trains on batch s % batches.
TrainingRun train(int ranks, int steps, int batches_made, const RunOn& on) {
  ModelSpec spec = preset_spec("llama_tiny");
  spec.vocab_size = 96;
  spec.hidden_size = 128;
  spec.intermediate_size = 256;
  spec.num_layers = 2;
  const ScheduleOptions schedule{.num_layers = 2, .shard_group = ranks};
  StepPlannerOptions planner{.chunks = 1};
  planner.token_shares.assign(static_cast<size_t>(ranks), 1.0);
  planner.costs = alike_costs(ranks);
  TrainingRun run{.losses = std::vector<double>(static_cast<size_t>(steps)), .allocations = {}};
  const RunRanksOptions options{.stall_timeout_s = 60, .device_memory = device_memory(on.device)};
  run_ranks(ranks, options, [&](Communicator& comm) {
    const at::Device device = device_of_rank(on.device, comm.rank());
    const DeviceThread thread(device);
    const auto model = make_model(spec, at::TensorOptions(on.type).device(device));
    ParameterStore store = make_parameter_store(
        model->parameters(), comm,
        {.shard_group = ranks, .bfloat16 = on.type == at::kBFloat16, .device = device});
    fill_random(model->parameters(), /*seed=*/3, store, comm);
    Executor executor(*model, store, comm);
    for (int step = 0; step < steps; ++step) {
      if (comm.rank() == 0) run.allocations.push_back(device_reserve(device).allocations);
      std::vector<PlannedMicroBatch> batches;
      batches.push_back(plan_micro_batch(
          learnable_batch(static_cast<uint64_t>(step % batches_made), spec.vocab_size), planner));
      const double weights = batches[0].data.weight_sum;
      const StepTotals totals = executor.run(
          build_step_schedule(schedule, {{&batches[0].layout, &batches[0].plans}}, comm.rank()),
          batches, {.loss_scale = 1 / weights});
      std::vector<double> loss = {totals.weighted_loss_sum};
      comm.all_reduce_sum(loss, "loss");
      store.step({}, 3e-3, 1.0, "step");
      if (comm.rank() == 0) run.losses[static_cast<size_t>(step)] = loss[0] / weights;
    }
  });
  return run;
}

std::vector<double> training_losses(int ranks, int steps, const RunOn& on) {
  return train(ranks, steps, steps, on).losses;
}

// The allocator asks the driver for memory while it meets batches, and then no more.
TEST_F(GpuTraining, MemoryDoesNotGrowAfterTheFirstSteps) {
  constexpr int kBatches = 8;
  constexpr size_t kKnown = 3 * kBatches;
  for (const int ranks : {1, 2}) {
    const TrainingRun run =
        train(ranks, 6 * kBatches, kBatches, {.type = at::kBFloat16, .device = kGpu});
    EXPECT_GT(run.allocations[kKnown], 0) << "the count counts";
    EXPECT_EQ(run.allocations.back(), run.allocations[kKnown]) << ranks << " ranks";
  }
}

TEST_F(GpuTraining, FiftyStepsFollowTheCpu) {
  constexpr int kSteps = 50;
  const std::vector<double> expected = training_losses(1, kSteps, {.type = at::kFloat});
  EXPECT_LT(expected.back(), 0.75 * expected.front()) << "the documents can be learned";
  for (const int ranks : {1, 4}) {
    const RunOn on{.type = at::kBFloat16, .device = kGpu};
    const std::vector<double> found = training_losses(ranks, kSteps, on);
    double difference = 0;
    for (size_t step = 0; step < found.size(); ++step) {
      difference += std::abs(found[step] - expected[step]) / kSteps;
    }
    std::cout << "mean |difference of loss| over " << kSteps << " steps, " << ranks
              << " ranks: " << difference << "; last loss " << found.back() << ", on CPU "
              << expected.back() << "\n";
    EXPECT_LE(difference, 0.02) << ranks << " ranks";
    EXPECT_EQ(found, training_losses(ranks, kSteps, on)) << "same bits on repeat";
  }
}

}  // namespace
}  // namespace longspan
