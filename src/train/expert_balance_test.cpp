#include "train/expert_balance.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "comm/run_ranks.h"
#include "spec/presets.h"
#include "train/model_store.h"
#include "train/store_state.h"

namespace longspan {
namespace {

constexpr double kRate = 1e-3;

struct Mesh {
  int ranks;
  int64_t shard_group;
  int64_t expert_group;
};

// Loads of a rank: random, the same in sum for any number of ranks, and of one rank none at all.
int64_t tokens_of_rank(uint64_t seed, int64_t layer, size_t expert, int rank, int ranks) {
  RandomStream random(seed, text("load ", layer), expert);
  const auto total = static_cast<int64_t>(random.below(60));
  if (ranks == 1) return total;
  const auto share = static_cast<int64_t>(random.below(static_cast<uint64_t>(total) + 1));
  if (rank == 0) return total - share;
  return rank == ranks - 1 ? share : 0;
}

StepTotals totals_of_rank(const ModelSpec& spec, uint64_t seed, const Communicator& comm) {
  StepTotals totals;
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    const bool idle = comm.size() > 2 && comm.rank() == 1;
    if (!spec.layer_kind(layer).has_experts || idle) continue;
    for (size_t expert = 0; expert < static_cast<size_t>(spec.experts.num_experts); ++expert) {
      totals.expert_loads[layer].push_back(
          tokens_of_rank(seed, layer, expert, comm.rank(), comm.size()));
    }
  }
  return totals;
}

// The rule, written down once more.
float expected_bias(const ModelSpec& spec, int64_t layer, size_t expert, int steps) {
  float bias = 0;
  for (int step = 0; step < steps; ++step) {
    double mean = 0;
    for (size_t e = 0; e < static_cast<size_t>(spec.experts.num_experts); ++e) {
      mean += static_cast<double>(tokens_of_rank(static_cast<uint64_t>(step), layer, e, 0, 1));
    }
    mean /= static_cast<double>(spec.experts.num_experts);
    const auto own =
        static_cast<double>(tokens_of_rank(static_cast<uint64_t>(step), layer, expert, 0, 1));
    if (own < mean) bias += static_cast<float>(kRate);
    if (own > mean) bias -= static_cast<float>(kRate);
  }
  return bias;
}

TEST(ExpertBalance, BiasMovesByTheRuleWithTheSameBitsOnEveryMesh) {
  constexpr int kSteps = 5;
  const ModelSpec spec = preset_spec("glm53_flash_tiny");
  const std::vector<Mesh> meshes = {{1, 1, 1}, {2, 1, 2}, {2, 2, 1}, {4, 4, 2}, {4, 2, 4}};
  for (const bool bfloat16 : {false, true}) {
    for (const Mesh& mesh : meshes) {
      SCOPED_TRACE(text(mesh.ranks, " ranks, groups ", mesh.shard_group, " and ", mesh.expert_group,
                        bfloat16 ? ", bfloat16" : ""));
      run_ranks(mesh.ranks, {.stall_timeout_s = 60}, [&](Communicator& comm) {
        const ParameterTable table(spec, mesh.expert_group);
        ParameterStore store = make_parameter_store(table, comm,
                                                    {.shard_group = mesh.shard_group,
                                                     .expert_group = mesh.expert_group,
                                                     .bfloat16 = bfloat16});
        for (int step = 0; step < kSteps; ++step) {
          const auto loads =
              expert_loads(spec, totals_of_rank(spec, static_cast<uint64_t>(step), comm), comm);
          ASSERT_EQ(std::ssize(loads), spec.count_expert_layers());
          move_selection_bias(loads, kRate, table, store);
        }
        for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
          if (!spec.layer_kind(layer).has_experts) continue;
          store.gather(1 + layer, "test");  // as the router reads it: not rounded to bfloat16
          const at::Tensor bias = store.weight(table.layer(layer).router_bias);
          ASSERT_EQ(bias.scalar_type(), at::kFloat);
          for (size_t e = 0; e < static_cast<size_t>(spec.experts.num_experts); ++e) {
            EXPECT_EQ(bias.const_data_ptr<float>()[e], expected_bias(spec, layer, e, kSteps));
          }
          // Nothing else moved.
          EXPECT_EQ(store.weight(table.layer(layer).router).abs().max().item<float>(), 0);
          store.release(1 + layer);
        }
      });
    }
  }
}

TEST(ExpertBalance, FiguresOfTheLog) {
  const std::vector<ExpertLoads> loads = {{1, {4, 4, 4, 4}}, {3, {0, 12, 4, 0}}};
  EXPECT_EQ(expert_imbalance(loads), 3.0);
  EXPECT_EQ(idle_experts(loads), 2);
  EXPECT_EQ(expert_imbalance({}), std::nullopt);
  EXPECT_EQ(idle_experts({}), std::nullopt);
}

}  // namespace
}  // namespace longspan
