// Sparse attention over ranks and chunks against plain loops over whole documents: random layouts
// with any borders, random and planned index plans, gathered and fetched latents, bands whose
// contexts are carried, repeated forwards.
#include "sparse_attention/sparse_attention_mix.h"

#include <mutex>

#include "sparse_attention/mix_case.h"

namespace longspan {
namespace {

void expect_equal(const Line& got, const Line& expected) {
  EXPECT_EQ(got.selected, expected.selected);
  EXPECT_LE(relative_error(got.o, expected.o), 1e-12) << "o";
  EXPECT_LE(relative_error(got.lse, expected.lse), 1e-12) << "LSE";
  EXPECT_LE(relative_error(got.d_c, expected.d_c), 1e-11) << "latents";
  // A query that sees one key has no gradient but rounding: measured beside the latents' ones.
  Doubles d_q = got.d_q;
  Doubles expected_d_q = expected.d_q;
  d_q.insert(d_q.end(), expected.d_c.begin(), expected.d_c.end());
  expected_d_q.insert(expected_d_q.end(), expected.d_c.begin(), expected.d_c.end());
  EXPECT_LE(relative_error(d_q, expected_d_q), 1e-11) << "queries";
}

TEST(SparseAttentionMix, AnyLayoutEqualsWholeDocuments) {
  uint64_t seed = 0;
  int64_t dropping = 0;
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const int chunks : {1, 2, 3, 5}) {
      for (int repeat = 0; repeat < 8; ++repeat, ++seed) {
        const MixCase c = random_case(seed, ranks, chunks);
        SCOPED_TRACE(describe(c));
        const Line got = run_case(c);
        expect_equal(got, reference_line(c, got));
        if (HasFailure()) return;
        for (int32_t document = 0; document < c.layout.num_documents(); ++document) {
          dropping += c.index.must_choose(c.layout.document_tokens(document) - 1) ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GE(dropping, 100);  // documents in which keys are really left out
}

// Scores are small integers, so both types select the same pools, ties among them.
TEST(SparseAttentionMix, Float32SelectsAlike) {
  for (uint64_t seed = 600; seed < 624 && !HasFailure(); seed += 3) {
    MixCase c = random_case(seed, 4, 2);
    c.type = at::kFloat;
    SCOPED_TRACE(describe(c));
    const Line got = run_case(c);
    const Line expected = reference_line(c, got);
    EXPECT_EQ(got.selected, expected.selected);
    // Sums of some hundred terms of unit roundoff 6e-8.
    EXPECT_LE(relative_error(got.o, expected.o), 1e-5);
    EXPECT_LE(relative_error(got.d_c, expected.d_c), 1e-5);
  }
}

// The work of scoring one long document: all pairs, and no rank far above the mean.
TEST(IndexPlans, ScoringIsSpreadOverRanks) {
  const TokenLayout layout = TokenLayout::make({32768}, {.shares = {1, 1, 1, 1}});
  const IndexShape released{.heads = 32, .width = 128, .pool_tokens = 4, .top_pools = 512};
  const IndexPlanSource plans = planned_index_scoring(released, {});
  const auto plan = plans(layout, 0);
  EXPECT_EQ(plan, plans(TokenLayout::make({32768}, {.shares = {1, 1, 1, 1}}), 0));
  EXPECT_NE(plan, plans(TokenLayout::make({32767}, {.shares = {1, 1, 1, 1}}), 0));
  int64_t total = 0;
  int64_t most = 0;
  for (const ServerPlan& server : plan->servers) {
    int64_t pairs = 0;
    for (const AttentionTask& task : server.tasks) pairs += visible_pairs(task.queries, task.keys);
    total += pairs;
    most = std::max(most, pairs);
  }
  EXPECT_EQ(total, int64_t{32768} * 32769 / 2);
  EXPECT_LE(static_cast<double>(most), 1.05 * static_cast<double>(total) / 4);
}

TEST(SparseAttentionMix, SameRunSameBits) {
  for (uint64_t seed = 500; seed < 508; ++seed) {
    const MixCase c = random_case(seed, 4, 3);
    const Line first = run_case(c);
    const Line second = run_case(c);
    EXPECT_TRUE(first.o == second.o && first.d_q == second.d_q && first.d_c == second.d_c)
        << describe(c);
  }
}

// Another choice of one query must be seen in the results.
TEST(SparseAttentionMix, AFlippedPoolIsNoticed) {
  MixCase c = random_case(1, 2, 2);
  c.layout = TokenLayout::from_borders({90}, 2, 2, {0, 21, 44, 66, 90});
  c.index.top_pools = 5;
  c.index.pool_tokens = c.attention.pool_tokens = 4;
  const Line got = run_case(c);
  Line expected = reference_line(c, got);
  expect_equal(got, expected);
  std::vector<int32_t>& selected = expected.selected.back();
  int32_t other = 0;
  while (std::find(selected.begin(), selected.end(), other) != selected.end()) ++other;
  selected[0] = other;
  std::sort(selected.begin(), selected.end());
  const auto flipped = reference::sparse_attention(c.attention, got.inputs[0], got.inputs[1],
                                                   expected.selected, got.d_o);
  EXPECT_NE(got.selected, expected.selected);
  EXPECT_GE(relative_error(got.o, flipped.o), 1e-6);
  EXPECT_GE(relative_error(got.d_c, flipped.d_latents), 1e-6);
}

TEST(SparseAttentionMix, BytesDecideHowLatentsTravel) {
  // Long documents and few selected pools: fetching moves less. Short ones: all rows are wanted.
  for (const int64_t tokens : {60, 2000}) {
    const TokenLayout layout = TokenLayout::make({tokens}, {.shares = {1, 1, 1, 1}});
    const PoolAxis axis(layout, 4);
    std::mutex mutex;
    run_ranks(4, {}, [&](Communicator& comm) {
      at::set_num_threads(1);
      const LatentExchange exchange(layout, axis, 0, {{512}, at::kFloat}, comm, 0, "latents");
      const Range piece = layout.piece(0, comm.rank());
      const at::Tensor pools = at::full({piece.size(), 1}, 0, at::kInt);
      const LatentTravel travel = exchange.choose(pools, LatentTravel::kAuto);
      const std::lock_guard lock(mutex);
      EXPECT_EQ(travel, tokens == 60 ? LatentTravel::kGather : LatentTravel::kFetch);
      EXPECT_EQ(exchange.choose(pools, LatentTravel::kGather), LatentTravel::kGather);
    });
  }
}

TEST(SelectedAttention, BitsDoNotDependOnThreads) {
  MixCase c = random_case(7, 1, 1);
  c.attention = {.heads = 3, .width = 20, .pool_tokens = 4, .scale = 0.3};
  c.index.pool_tokens = 4;
  c.index.top_pools = 8;
  c.layout = TokenLayout::make({300, 2, 77}, {});
  const SparseAttentionMix mix = make_mix(c);
  const Line inputs = random_line(c, mix);
  std::vector<Line> lines(2, inputs);
  const int before = at::get_num_threads();
  for (size_t run = 0; run < 2; ++run) {
    run_ranks(1, {}, [&](Communicator& comm) {
      at::set_num_threads(run == 0 ? 1 : 3);
      RankRun(c, mix, comm, &lines[run]).run();
    });
  }
  at::set_num_threads(before);
  EXPECT_EQ(lines[0].selected, lines[1].selected);
  EXPECT_TRUE(lines[0].o == lines[1].o && lines[0].d_q == lines[1].d_q &&
              lines[0].d_c == lines[1].d_c);
}

}  // namespace
}  // namespace longspan
