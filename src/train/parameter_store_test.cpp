#include "train/parameter_store.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/random.h"
#include "comm/run_ranks.h"

namespace longspan {
namespace {

constexpr int64_t kContributions = 8;  // of each band, spread over the ranks
constexpr int64_t kBands = 2;
constexpr int64_t kSteps = 3;
constexpr double kClip = 0.5;
const AdamWOptions kAdamW{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

Parameter parameter(const std::string& name, const std::vector<int64_t>& shape, int64_t unit) {
  return {.name = name, .shape = shape, .unit = unit};
}

// Units on all ranks, then, if experts are spread, one unit for each block of them.
std::vector<Parameter> random_parameters(uint64_t seed, int64_t expert_group = 1) {
  RandomStream random(seed, "store test parameters");
  std::vector<Parameter> parameters;
  const int64_t dense_units = random.between(1, 4);
  const int64_t units = dense_units + (expert_group > 1 ? expert_group : 0);
  for (int64_t unit = 0; unit < units; ++unit) {
    const int64_t count = random.between(1, 4);
    for (int64_t p = 0; p < count; ++p) {
      const bool matrix = random.below(2) == 0;
      std::vector<int64_t> shape = {random.between(1, 40)};
      if (matrix) shape.push_back(random.between(1, 40));
      parameters.push_back({.name = text("unit", unit, ".p", p),
                            .shape = shape,
                            .unit = unit,
                            .decayed = matrix,
                            .expert_block = unit < dense_units ? -1 : unit - dense_units});
    }
  }
  return parameters;
}

// What contribution `index` adds to a parameter's gradient; unequal in size, some of them zero.
std::vector<double> contribution(uint64_t seed, size_t parameter, int64_t step, int64_t index,
                                 int64_t elements) {
  RandomStream random(seed, text("gradient ", parameter, " ", step), static_cast<uint64_t>(index));
  std::vector<double> values(static_cast<size_t>(elements));
  const double scale = random.below(4) == 0 ? 0.0 : random.uniform();
  for (double& value : values) value = scale * random.normal();
  return values;
}

double start_weight(size_t parameter, int64_t element) {
  return std::sin(static_cast<double>(parameter) * 17.0 + static_cast<double>(element));
}

struct Outcome {
  std::vector<double> norms;
  std::vector<std::vector<double>> gradients;  // of the last step
  std::vector<std::vector<double>> weights;    // at the end
};

// The same training in plain double loops, without units, ranks or kernels.
Outcome reference(const std::vector<Parameter>& parameters, uint64_t seed) {
  Outcome outcome;
  std::vector<std::vector<double>> first(parameters.size());
  std::vector<std::vector<double>> second(parameters.size());
  outcome.weights.resize(parameters.size());
  for (size_t p = 0; p < parameters.size(); ++p) {
    const auto count = static_cast<size_t>(parameters[p].elements());
    first[p].assign(count, 0.0);
    second[p].assign(count, 0.0);
    for (size_t e = 0; e < count; ++e) {
      outcome.weights[p].push_back(start_weight(p, static_cast<int64_t>(e)));
    }
  }
  for (int64_t step = 0; step < kSteps; ++step) {
    outcome.gradients.assign(parameters.size(), {});
    double sum = 0;
    for (size_t p = 0; p < parameters.size(); ++p) {
      std::vector<double>& gradient = outcome.gradients[p];
      gradient.assign(first[p].size(), 0.0);
      for (int64_t index = 0; index < kBands * kContributions; ++index) {
        const auto values = contribution(seed, p, step, index, std::ssize(gradient));
        for (size_t e = 0; e < values.size(); ++e) gradient[e] += values[e];
      }
      for (const double g : gradient) sum += g * g;
    }
    outcome.norms.push_back(std::sqrt(sum));
    const double factor = std::min(1.0, kClip / outcome.norms.back());
    const double lr = 0.01 * static_cast<double>(step + 1);
    for (size_t p = 0; p < parameters.size(); ++p) {
      for (size_t e = 0; e < first[p].size(); ++e) {
        const double g = outcome.gradients[p][e] * factor;
        double& m = first[p][e];
        double& v = second[p][e];
        double& w = outcome.weights[p][e];
        m = kAdamW.beta1 * m + (1 - kAdamW.beta1) * g;
        v = kAdamW.beta2 * v + (1 - kAdamW.beta2) * g * g;
        const double m_hat = m / (1 - std::pow(kAdamW.beta1, static_cast<double>(step + 1)));
        const double v_hat = v / (1 - std::pow(kAdamW.beta2, static_cast<double>(step + 1)));
        if (parameters[p].decayed) w -= lr * kAdamW.weight_decay * w;
        w -= lr * m_hat / (std::sqrt(v_hat) + kAdamW.eps);
      }
    }
  }
  return outcome;
}

std::vector<double> values_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kDouble).contiguous();
  return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
}

void fill_start_weights(ParameterStore& store) {
  for (int64_t unit = 0; unit < store.layout().num_units(); ++unit) {
    const Range shard = store.layout().shard(unit, store.rank());
    for (const FlatSlice& slice : store.layout().slices(unit, shard)) {
      std::visit(
          [&](auto values) {
            for (int64_t e = slice.elements.begin; e < slice.elements.end; ++e) {
              const int64_t position = slice.flat_begin + e - slice.elements.begin - shard.begin;
              values[static_cast<size_t>(position)] =
                  static_cast<std::remove_cvref_t<decltype(values[0])>>(
                      start_weight(static_cast<size_t>(slice.parameter), e));
            }
          },
          store.shard(unit));
    }
  }
}

// One band of one unit: this rank's contributions. `busy_ranks` ranks have work; a group without
// any skips the unit.
void run_band(ParameterStore& store, uint64_t seed, int64_t unit, int64_t step, int64_t band,
              int64_t busy_ranks) {
  const ParameterLayout& layout = store.layout();
  const UnitHolders holders = layout.holders(unit);
  if (!holders.contain(store.rank())) return;
  const bool experts = layout.expert_block(unit) >= 0;  // all of their holders have work
  if (!experts && holders.group(store.rank()) * layout.shard_group() >= busy_ranks) return;
  const int64_t workers = experts ? holders.count : busy_ranks;
  store.gather(unit, "gather");
  store.open_gradients(unit);
  const Range ids = layout.unit_parameters(unit);
  for (int64_t id = ids.begin; id < ids.end; ++id) {
    at::Tensor& gradient = store.gradient(id);
    EXPECT_EQ(gradient.sizes(), store.weight(id).sizes());
    for (int64_t index = 0; index < kContributions; ++index) {
      if (index % workers != holders.index(store.rank())) continue;
      const auto values = contribution(seed, static_cast<size_t>(id), step,
                                       band * kContributions + index, gradient.numel());
      const at::Tensor added = at::from_blob(const_cast<double*>(values.data()), gradient.sizes(),
                                             at::TensorOptions(at::kDouble));
      gradient.add_(added);
    }
  }
  store.reduce_gradients(unit, "reduce");
  store.release(unit);
  store.close_gradients(unit);
}

// All ranks have the same master copy, and the holders products with it.
void read_weights(ParameterStore& store, int64_t unit, Outcome& outcome) {
  const ParameterLayout& layout = store.layout();
  const Range ids = layout.unit_parameters(unit);
  const RealSpan master = store.gather_master(unit, "end");
  for (int64_t id = ids.begin; id < ids.end; ++id) {
    const RealSpan part = sub_span(master, layout.place(id).flat);
    std::visit([&](auto values) { outcome.weights.emplace_back(values.begin(), values.end()); },
               part);
  }
  if (!layout.holders(unit).contain(store.rank())) return;
  store.gather(unit, "end");
  for (int64_t id = ids.begin; id < ids.end; ++id) {
    EXPECT_EQ(values_of(store.weight(id)), outcome.weights[static_cast<size_t>(id)]);
  }
  store.release(unit);
}

Outcome run_rank_body(ParameterStore& store, uint64_t seed, int64_t busy_ranks) {
  Outcome outcome;
  fill_start_weights(store);
  const int64_t units = store.layout().num_units();
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int64_t band = 0; band < kBands; ++band) {
      for (int64_t unit = units - 1; unit >= 0; --unit) {
        run_band(store, seed, unit, step, band, busy_ranks);
      }
    }
    if (step == kSteps - 1) {
      for (const Parameter& parameter : store.parameters()) {
        outcome.gradients.push_back(values_of(store.gradient_tensor(parameter.name, "test")));
      }
    }
    outcome.norms.push_back(
        store.step(kAdamW, 0.01 * static_cast<double>(step + 1), kClip, text("step ", step)));
  }
  for (int64_t unit = 0; unit < units; ++unit) read_weights(store, unit, outcome);
  return outcome;
}

std::vector<Outcome> train(uint64_t seed, int ranks, int64_t shard_group, int64_t busy_ranks,
                           bool float64, int64_t expert_group = 1) {
  std::vector<Outcome> outcomes(static_cast<size_t>(ranks));
  run_ranks(ranks, {.stall_timeout_s = 60}, [&](Communicator& comm) {
    ParameterStore store(
        random_parameters(seed, expert_group), comm,
        {.shard_group = shard_group, .expert_group = expert_group, .float64 = float64});
    outcomes[static_cast<size_t>(comm.rank())] = run_rank_body(store, seed, busy_ranks);
  });
  return outcomes;
}

void expect_close(const std::vector<double>& actual, const std::vector<double>& expected,
                  double tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(size)) << what;
}

void expect_same_training(const Outcome& actual, const Outcome& expected, double tolerance) {
  expect_close(actual.norms, expected.norms, tolerance, "norms");
  for (size_t p = 0; p < expected.weights.size(); ++p) {
    expect_close(actual.gradients[p], expected.gradients[p], tolerance, text("gradient ", p));
    expect_close(actual.weights[p], expected.weights[p], tolerance, text("weight ", p));
  }
}

// 1e-12: sums of 16 terms and three updates in float64 round at a few 1e-16; the quotient m /
// sqrt(v) of an element is not worse than that, since both carry the same relative error.
TEST(ParameterStore, EveryLayoutOfRanksTrainsAsPlainLoopsDo) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int shard_group = 1; shard_group <= ranks; ++shard_group) {
      if (ranks % shard_group != 0) continue;
      const auto seed = static_cast<uint64_t>(100 * ranks + shard_group);
      RandomStream random(seed, "busy ranks");
      const int64_t busy_ranks = random.between(1, ranks);
      SCOPED_TRACE(text("ranks ", ranks, ", shard group ", shard_group, ", busy ", busy_ranks));
      const Outcome expected = reference(random_parameters(seed), seed);
      for (const Outcome& actual : train(seed, ranks, shard_group, busy_ranks, true)) {
        expect_same_training(actual, expected, 1e-12);
      }
    }
  }
}

TEST(ParameterStore, SpreadExpertsTrainAsPlainLoopsDo) {
  const std::vector<std::array<int, 3>> cases = {{2, 1, 2}, {2, 2, 2}, {4, 1, 2}, {4, 2, 2},
                                                 {4, 4, 2}, {4, 2, 4}, {8, 4, 2}, {8, 2, 4},
                                                 {6, 3, 3}, {8, 8, 8}, {3, 1, 3}};
  for (const auto& [ranks, shard_group, expert_group] : cases) {
    SCOPED_TRACE(text(ranks, " ranks, groups ", shard_group, " and ", expert_group));
    const auto seed = static_cast<uint64_t>(1000 + ranks * 100 + shard_group * 10 + expert_group);
    const Outcome expected = reference(random_parameters(seed, expert_group), seed);
    const int busy = std::max(1, ranks - 1);
    for (const Outcome& actual : train(seed, ranks, shard_group, busy, true, expert_group)) {
      expect_same_training(actual, expected, 1e-12);
    }
  }
}

// Float32: the elements' first update is lr * g / |g|, whose error is that of the clip factor and
// of the moments' roundings, some 1e-7 each; gradients near eps amplify a little.
TEST(ParameterStore, Float32StaysNearTheReference) {
  const uint64_t seed = 7;
  const Outcome expected = reference(random_parameters(seed), seed);
  for (const Outcome& actual : train(seed, 4, 2, 4, false)) {
    expect_same_training(actual, expected, 1e-5);
  }
}

TEST(ParameterStore, SameLayoutGivesTheSameBits) {
  for (const int shard_group : {1, 2, 4}) {
    const auto once = train(11, 4, shard_group, 4, false);
    const auto again = train(11, 4, shard_group, 4, false);
    for (size_t rank = 0; rank < once.size(); ++rank) {
      EXPECT_EQ(once[rank].weights, again[rank].weights);
      EXPECT_EQ(once[rank].weights, once[0].weights) << "rank " << rank;
      EXPECT_EQ(once[rank].norms, once[0].norms);
    }
  }
}

TEST(ParameterStore, ATiedWeightCollectsBothUses) {
  for (const int shard_group : {1, 2}) {
    run_ranks(2, {}, [&](Communicator& comm) {
      ParameterStore store({parameter("embedding", {3, 2}, 0), parameter("norm", {2}, 1)}, comm,
                           {.shard_group = shard_group, .float64 = true});
      for (const double use : {1.0, 10.0}) {
        store.open_gradients(0);
        store.gradient(0).add_(use * (comm.rank() + 1));
        store.reduce_gradients(0, "use");
        store.close_gradients(0);
      }
      EXPECT_EQ(values_of(store.gradient_tensor("embedding", "test")),
                std::vector<double>(6, 33.0));
      EXPECT_EQ(values_of(store.gradient_tensor("norm", "test")), std::vector<double>(2, 0.0));
      EXPECT_DOUBLE_EQ(store.finish_gradients("test"), 33.0 * std::sqrt(6.0));
      store.discard_gradients();
      EXPECT_EQ(store.finish_gradients("test"), 0.0);
    });
  }
}

TEST(ParameterStore, ANormThatIsNotFiniteStopsAllRanksAndChangesNothing) {
  run_ranks(4, {}, [&](Communicator& comm) {
    ParameterStore store({parameter("w", {64}, 0)}, comm, {.shard_group = 2});
    fill_start_weights(store);
    store.open_gradients(0);
    if (comm.rank() == 3) store.gradient(0)[5] = std::numeric_limits<float>::infinity();
    store.reduce_gradients(0, "reduce");
    store.close_gradients(0);
    try {
      store.step(kAdamW, 0.1, 1.0, "step 12");
      ADD_FAILURE() << "accepted";
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("step 12"), std::string::npos) << error.what();
    }
    EXPECT_EQ(store.updates(), 0);
    store.gather(0, "look");
    EXPECT_FLOAT_EQ(store.weight(0)[1].item<float>(), static_cast<float>(start_weight(0, 1)));
    store.release(0);
  });
}

TEST(ParameterStore, ASingleRankCopiesNothing) {
  run_ranks(1, {}, [](Communicator& comm) {
    ParameterStore store({parameter("w", {64}, 0)}, comm, {});
    store.gather(0, "g");
    store.open_gradients(0);
    const auto shard = std::get<std::span<float>>(store.shard(0));
    EXPECT_EQ(store.weight(0).data_ptr<float>(), shard.data());
    store.gradient(0).add_(1.0);
    store.reduce_gradients(0, "r");
    store.close_gradients(0);
    store.release(0);
    store.step(kAdamW, 0.1, 1.0, "step 0");
    const std::vector<NamedBytes> memory = store.memory();
    EXPECT_EQ(memory[0].bytes, 256);
    EXPECT_EQ(memory[1].bytes, 256);
    EXPECT_EQ(memory[2].bytes, 512);
    EXPECT_EQ(memory[3].bytes, 0);
  });
}

TEST(ParameterStore, ShardsAndStatesDivideTheBytes) {
  run_ranks(4, {}, [](Communicator& comm) {
    ParameterStore store({parameter("w", {640}, 0)}, comm, {.shard_group = 2});
    store.gather(0, "g");
    store.open_gradients(0);
    store.reduce_gradients(0, "r");
    store.close_gradients(0);
    store.release(0);
    const std::vector<NamedBytes> memory = store.memory();
    EXPECT_EQ(memory[0].bytes, 640 * 4 / 2);
    EXPECT_EQ(memory[1].bytes, 640 * 4 / 2);
    EXPECT_EQ(memory[2].bytes, 2 * 640 * 4 / 4);
    EXPECT_EQ(memory[3].bytes, 2 * 640 * 4);
  });
}

TEST(ParameterStore, UseOutOfOrderIsAnInternalError) {
  run_ranks(1, {}, [](Communicator& comm) {
    ParameterStore store({parameter("w", {8}, 0)}, comm, {});
    EXPECT_THROW(store.weight(0), InternalError);
    EXPECT_THROW(store.gradient(0), InternalError);
    EXPECT_THROW(store.release(0), InternalError);
    EXPECT_THROW(store.reduce_gradients(0, "r"), InternalError);
    EXPECT_THROW(store.find("v"), UserError);
    store.gather(0, "g");
    EXPECT_THROW(store.gather(0, "g"), InternalError);
    EXPECT_THROW(store.step(kAdamW, 0.1, 1.0, "step 0"), InternalError);
    store.release(0);
    store.open_gradients(0);
    EXPECT_THROW(store.open_gradients(0), InternalError);
    EXPECT_THROW(store.finish_gradients("f"), InternalError);
    EXPECT_THROW(store.close_gradients(0), InternalError);
    store.reduce_gradients(0, "r");
    EXPECT_THROW(store.gradient(0), InternalError);
    EXPECT_THROW(store.reduce_gradients(0, "r"), InternalError);
    EXPECT_THROW(store.finish_gradients("f"), InternalError);
    store.close_gradients(0);
    store.finish_gradients("f");
  });
}

}  // namespace
}  // namespace longspan
