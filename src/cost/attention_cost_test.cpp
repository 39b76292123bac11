#include "cost/attention_cost.h"

#include <gtest/gtest.h>

#include "cost/charged_pairs.h"
#include "cost/device_profile.h"

namespace longspan {
namespace {

constexpr AttentionSizes kLlama8b{
    .query_heads = 32, .key_heads = 8, .key_width = 128, .value_width = 128};
constexpr AttentionSizes kLlama34b{
    .query_heads = 64, .key_heads = 16, .key_width = 128, .value_width = 128};

// Bytes per token and layer of a model with query width h, key width k and H query heads, bf16.
void expect_bytes(const AttentionSizes& shape, double h, double k, double heads) {
  EXPECT_EQ(row_bytes(shape, Direction::kForward),
            (RowBytes{.query_out = 2 * h,
                      .key_out = 4 * k,
                      .query_back = 2 * h + 4 * heads,
                      .query_back_partial = 4 * h + 4 * heads}));
  EXPECT_EQ(row_bytes(shape, Direction::kBackward), (RowBytes{.query_out = 4 * h + 8 * heads,
                                                              .key_out = 4 * k,
                                                              .query_back = 2 * h,
                                                              .query_back_partial = 4 * h,
                                                              .key_back = 4 * k,
                                                              .key_back_partial = 8 * k}));
}

TEST(AttentionSizes, RowsOfPublishedModels) {
  expect_bytes(kLlama8b, 4096, 1024, 32);
  expect_bytes(kLlama34b, 8192, 2048, 64);
}

TEST(AttentionSizes, DevicesOfAServerShareBytesAndFlops) {
  AttentionSizes node = kLlama34b;
  node.devices_per_server = 8;
  expect_bytes(node, 8192.0 / 8, 2048.0 / 8, 64.0 / 8);
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    EXPECT_EQ(flops_per_pair(node, direction) * 8, flops_per_pair(kLlama34b, direction));
  }
}

TEST(AttentionSizes, KeysWiderThanValues) {
  const AttentionSizes shape{
      .query_heads = 4, .key_heads = 4, .key_width = 192, .value_width = 128};
  EXPECT_EQ(flops_per_pair(shape, Direction::kForward), 2.0 * (192 + 128) * 4);
  EXPECT_EQ(flops_per_pair(shape, Direction::kBackward), (6.0 * 192 + 4 * 128) * 4);
  const RowBytes forward = row_bytes(shape, Direction::kForward);
  EXPECT_EQ(forward.query_out, 2.0 * 4 * 192);
  EXPECT_EQ(forward.key_out, 2.0 * 4 * (192 + 128));
  EXPECT_EQ(forward.query_back, 2.0 * 4 * 128 + 4 * 4);
  const RowBytes backward = row_bytes(shape, Direction::kBackward);
  EXPECT_EQ(backward.query_out, 2.0 * 4 * (192 + 128) + 8 * 4);
  EXPECT_EQ(backward.query_back, 2.0 * 4 * 192);
}

TEST(AttentionSizes, BackwardIsTwoAndAHalfTimesForwardForEqualWidths) {
  EXPECT_EQ(flops_per_pair(kLlama8b, Direction::kForward), 4.0 * 128 * 32);
  EXPECT_EQ(flops_per_pair(kLlama8b, Direction::kBackward), 10.0 * 128 * 32);
}

PassRates rates(double causal, double full) {
  return {.causal = RateGrid({128, 1024}, {128, 65536}, {causal, causal, causal, causal}),
          .full = RateGrid({128}, {128}, {full}),
          .task_overhead_s = 3e-6,
          .launch_overhead_s = 2e-5,
          .row_flops_per_s = 4.5e12};
}

// The same pairs further on in a document cost the same, and those are in no table.
TEST(AttentionCost, WholeDocumentsCostWhatTheirTilesCost) {
  const DeviceProfile profile = device_profile("h200");
  for (const PassRates& rates : {profile.forward, profile.backward}) {
    const AttentionCost cost(kLlama8b, rates, Direction::kForward);
    for (int64_t tokens = 1; tokens < 9000; ++tokens) {
      const Range later{128, 128 + tokens};
      ASSERT_EQ(cost.task_s({0, tokens}, {0, tokens}), cost.task_s(later, later)) << tokens;
    }
    EXPECT_EQ(cost.task_s({0, 0}, {0, 0}), 0);
    EXPECT_EQ(cost.task_s({0, -5}, {0, -5}), 0);
  }
}

TEST(AttentionCost, ChargesWholeTilesAtTheRateOfTheKind) {
  const AttentionCost cost(kLlama8b, rates(300e12, 600e12), Direction::kForward);
  const double pair_flops = 4.0 * 128 * 32;
  EXPECT_DOUBLE_EQ(cost.task_s({0, 100}, {0, 100}), 3e-6 + 128 * 128 * pair_flops / 300e12);
  EXPECT_DOUBLE_EQ(cost.task_s({0, 4096}, {0, 4096}),
                   3e-6 + 128.0 * 128 * (32 * 33 / 2) * pair_flops / 300e12);
  // All keys before the queries, or up to the first one: no mask.
  EXPECT_DOUBLE_EQ(cost.task_s({4096, 4224}, {0, 4096}), 3e-6 + 128.0 * 4096 * pair_flops / 600e12);
  EXPECT_DOUBLE_EQ(cost.task_s({4095, 4096}, {0, 4096}), 3e-6 + 128.0 * 4096 * pair_flops / 600e12);
  EXPECT_DOUBLE_EQ(cost.task_s({4096, 4224}, {0, 4224}), 3e-6 + 128.0 * 4224 * pair_flops / 300e12);
  EXPECT_EQ(cost.launch_s(), 2e-5);
  EXPECT_DOUBLE_EQ(cost.pair_s(500, 9000), pair_flops / 300e12);
}

TEST(AttentionCost, NoQueriesOrKeysCostNothing) {
  const AttentionCost cost(kLlama8b, rates(300e12, 600e12), Direction::kBackward);
  EXPECT_EQ(cost.task_s({5, 5}, {0, 5}), 0);
  EXPECT_EQ(cost.task_s({5, 9}, {5, 5}), 0);
}

// 128 queries x 512K keys of one head on one multiprocessor at 4.5 TFLOP/s, whatever shares heads.
TEST(AttentionCost, RowFloor) {
  AttentionSizes node = kLlama8b;
  node.devices_per_server = 8;
  for (const AttentionSizes& shape : {kLlama8b, node}) {
    const AttentionCost cost(shape, rates(300e12, 600e12), Direction::kForward);
    EXPECT_NEAR(cost.row_s(512 * 1024), 7.6e-3, 0.05e-3);
  }
  PassRates unknown = rates(300e12, 600e12);
  unknown.row_flops_per_s = 0;
  EXPECT_EQ(AttentionCost(kLlama8b, unknown, Direction::kForward).row_s(1 << 20), 0);
}

}  // namespace
}  // namespace longspan
