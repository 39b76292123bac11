// A training step over ranks and messages that misbehave: it ends with an error that names the rank
// and the operation, on every rank and in bounded time; and messages that are merely slow or out of
// order change no bit.
//
// Three thread ranks of a small model behind a FaultCommunicator (comm/fault_communicator.h), one
// long document over all ranks and a few short ones, two chunks, so that every kind of exchange
// occurs: weights, keys and values, results, gradients.
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/random.h"
#include "comm/fault_communicator.h"
#include "comm/run_ranks.h"
#include "data/memory_source.h"
#include "data/micro_batch.h"
#include "model/transformer_model.h"
#include "spec/presets.h"
#include "train/executor.h"
#include "train/model_store.h"
#include "train/step_planner.h"

namespace longspan {
namespace {

constexpr int kRanks = 3;
// Far more than the step takes, so that only a fault can be waited for that long.
constexpr double kStallTimeout_s = 1;
constexpr double kStall_s = 2.5;
constexpr double kEnd_s = 15;
constexpr double kNever_s = 300;  // the timeout where no fault is expected

ModelSpec small_spec() {
  ModelSpec spec = preset_spec("llama_tiny");
  spec.vocab_size = 23;
  spec.hidden_size = 16;
  spec.intermediate_size = 24;
  spec.num_layers = 2;
  spec.num_query_heads = 4;
  spec.num_kv_heads = 2;
  spec.head_dim = 6;
  spec.initializer_range = 0.5;
  return spec;
}

std::vector<PlannedMicroBatch> make_batches(const ModelSpec& spec) {
  RandomStream random(11, "documents");
  std::vector<DocumentContent> contents;
  PackedMicroBatch packed;
  for (const int64_t length : {900, 1, 130, 40}) {
    DocumentContent content;
    for (int64_t at = 0; at < length; ++at) {
      content.tokens.push_back(static_cast<int32_t>(random.between(0, spec.vocab_size - 1)));
    }
    packed.pieces.push_back({std::ssize(contents), {0, length}});
    contents.push_back(std::move(content));
  }
  StepPlannerOptions options{.chunks = 2};
  options.token_shares.assign(kRanks, 1.0);
  options.costs = alike_costs(kRanks);
  std::vector<PlannedMicroBatch> batches;
  batches.push_back(plan_micro_batch(
      materialize(MemorySource(std::move(contents)), packed, {.vocabulary_size = spec.vocab_size}),
      options));
  return batches;
}

// What became of a step: each rank's error, or nobody's and rank 0's view of the gradients.
struct Outcome {
  std::map<int, std::string> failures;
  double seconds = 0;
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
};

void run_rank_step(const ModelSpec& spec, const std::vector<PlannedMicroBatch>& batches,
                   Communicator& comm, Outcome* outcome) {
  const std::vector<MicroBatchPlan> micro_batches = {{&batches[0].layout, &batches[0].plans}};
  // Of all modes the one with the most traffic: recomputes attention and its exchange.
  const StepSchedule schedule = build_step_schedule({.num_layers = 2,
                                                     .band_chunks = 1,
                                                     .stored_mode = StoredMode::kContextOnly,
                                                     .inner_mode = StoredMode::kLayerInputs,
                                                     .shard_group = kRanks},
                                                    micro_batches, comm.rank());
  const auto model = make_model(spec, at::kFloat);
  ParameterStore store = make_parameter_store(model->parameters(), comm, {.shard_group = kRanks});
  fill_random(model->parameters(), /*seed=*/7, store, comm);
  Executor executor(*model, store, comm);
  std::vector<double> loss = {executor.run(schedule, batches, {}).weighted_loss_sum};
  comm.all_reduce_sum(loss, "loss");
  for (const Parameter& parameter : store.parameters()) {
    const at::Tensor gradient = store.gradient_tensor(parameter.name, "gradients").clone();
    if (comm.rank() == 0) outcome->gradients[parameter.name] = gradient;
  }
  if (comm.rank() == 0) outcome->loss = loss[0];
}

// `plan_of` gives each rank's faults.
Outcome run_step(double stall_timeout_s, const std::function<FaultPlan(int rank)>& plan_of) {
  const ModelSpec spec = small_spec();
  const std::vector<PlannedMicroBatch> batches = make_batches(spec);
  Outcome outcome;
  std::mutex mutex;
  const auto begin = std::chrono::steady_clock::now();
  try {
    run_ranks(kRanks, {.stall_timeout_s = stall_timeout_s}, [&](Communicator& plain) {
      try {
        const auto comm = with_faults(plain, plan_of(plain.rank()));
        run_rank_step(spec, batches, *comm, &outcome);
      } catch (const std::exception& error) {
        const std::lock_guard guard(mutex);
        outcome.failures[plain.rank()] = error.what();
        throw;
      }
    });
  } catch (const std::exception&) {
    // The first failure; `failures` has all.
  }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return outcome;
}

Outcome run_with_fault(int culprit, const Fault& fault) {
  return run_step(kStallTimeout_s, [&](int rank) {
    FaultPlan plan;
    if (rank == culprit) plan.faults = {fault};
    return plan;
  });
}

void expect_text(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
}

// Every rank has ended with an error, and all errors tell the same story.
void expect_all_fail(const Outcome& outcome, const std::vector<std::string>& parts) {
  EXPECT_LT(outcome.seconds, kEnd_s);
  ASSERT_EQ(outcome.failures.size(), size_t{kRanks});
  for (const auto& [rank, message] : outcome.failures) {
    for (const std::string& part : parts) expect_text(message, part);
  }
}

// One of each kind of exchange. Of attention the first send of that name that the rank makes.
const std::vector<std::string> kMessages = {
    "attention forward, layer 0", "attention forward, layer 1", "attention recompute, layer 1",
    "attention backward, layer 1", "attention backward, layer 0"};
const std::vector<std::string> kCollectives = {"gather weights", "reduce gradients"};

std::vector<std::string> all_operations() {
  std::vector<std::string> operations = kMessages;
  operations.insert(operations.end(), kCollectives.begin(), kCollectives.end());
  return operations;
}

TEST(Fault, NoneNoError) {
  const Outcome outcome = run_step(kNever_s, [](int) { return FaultPlan{}; });
  EXPECT_TRUE(outcome.failures.empty()) << outcome.failures.begin()->second;
  EXPECT_GT(outcome.loss, 0);
}

class FaultIn : public testing::TestWithParam<std::string> {};

TEST_P(FaultIn, CrashEndsAllRanks) {
  for (int culprit = 0; culprit < kRanks; ++culprit) {
    const Outcome outcome = run_with_fault(culprit, {Fault::Kind::kCrash, GetParam(), 0});
    expect_all_fail(outcome, {text("injected crash of rank ", culprit), GetParam()});
  }
}

TEST_P(FaultIn, StallNamesRankAndOperation) {
  const int culprit = 1;
  const Outcome outcome = run_with_fault(culprit, {Fault::Kind::kStall, GetParam(), 0, kStall_s});
  expect_all_fail(outcome,
                  {text("rank ", culprit, " has been in 'injected stall before '"), GetParam()});
}

INSTANTIATE_TEST_SUITE_P(Operations, FaultIn, testing::ValuesIn(all_operations()));

class FaultInMessage : public testing::TestWithParam<std::string> {};

// Whoever misses the message waits for its sender, which in the end waits too.
TEST_P(FaultInMessage, DroppedMessageNamesThoseWhoWait) {
  int dropped = 0;
  for (int culprit = 0; culprit < kRanks; ++culprit) {
    const Outcome outcome = run_with_fault(culprit, {Fault::Kind::kDrop, GetParam(), 0});
    if (outcome.failures.empty()) continue;  // this rank sends no such message
    ++dropped;
    expect_all_fail(outcome, {text("rank ", culprit), GetParam(), "wait"});
  }
  EXPECT_GE(dropped, 2) << "the case does not exchange enough to prove anything";
}

INSTANTIATE_TEST_SUITE_P(Messages, FaultInMessage, testing::ValuesIn(kMessages));

TEST(Fault, DelayedAndReorderedMessagesChangeNoBit) {
  const Outcome expected = run_step(kNever_s, [](int) { return FaultPlan{}; });
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const Outcome found = run_step(kNever_s, [&](int) {
      return FaultPlan{
          .seed = seed, .delay_probability = 0.2, .delay_us_max = 300, .reorder = true};
    });
    ASSERT_TRUE(found.failures.empty())
        << "seed " << seed << ": " << found.failures.begin()->second;
    EXPECT_EQ(found.loss, expected.loss) << "seed " << seed;
    for (const auto& [name, gradient] : expected.gradients) {
      EXPECT_TRUE(found.gradients.at(name).equal(gradient)) << name << ", seed " << seed;
    }
  }
}

}  // namespace
}  // namespace longspan
