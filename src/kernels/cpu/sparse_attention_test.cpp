// Pooled keys, index scoring and sparse attention against plain loops: random shapes, exact ties,
// signed zeros, bounded work buffers, gradients by finite differences.
#include "kernels/cpu/sparse_attention.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "base/random.h"
#include "kernels/cpu/index_scoring.h"
#include "kernels/cpu/pooled_keys.h"
#include "kernels/cpu/reference_sparse_attention.h"

namespace longspan {
namespace {

using Doubles = std::vector<double>;
using Selection = std::vector<std::vector<int32_t>>;

Doubles normals(RandomStream& random, int64_t count) {
  Doubles values(static_cast<size_t>(count));
  for (double& value : values) value = random.normal();
  return values;
}

double worst_difference(const Doubles& a, const Doubles& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t idx = 0; idx < a.size(); ++idx) worst = std::max(worst, std::abs(a[idx] - b[idx]));
  return worst;
}

IndexShape random_index_shape(RandomStream& random) {
  IndexShape shape{.heads = random.between(1, 5),
                   .width = random.between(1, 20),
                   .pool_tokens = random.between(1, 5),
                   .top_pools = random.between(1, 9)};
  shape.scale = 1 / std::sqrt(static_cast<double>(shape.width));
  return shape;
}

// A document's index inputs. With few distinct values scores tie, also at zero.
struct IndexInputs {
  Doubles q, weights, pooled;
  int64_t tokens = 0;
};

IndexInputs random_index(RandomStream& random, const IndexShape& shape, int64_t tokens,
                         bool with_ties) {
  IndexInputs inputs{.tokens = tokens};
  const int64_t pools = tokens / shape.pool_tokens;
  inputs.q = normals(random, tokens * shape.heads * shape.width);
  inputs.weights = normals(random, tokens * shape.heads);
  inputs.pooled = normals(random, pools * shape.width);
  if (!with_ties) return inputs;
  for (Doubles* values : {&inputs.q, &inputs.weights, &inputs.pooled}) {
    for (double& value : *values) value = static_cast<double>(random.between(-1, 1));
  }
  return inputs;
}

// Scores parts of the document with work buffers of `bound_bytes`; the parts in any order.
template <typename Real>
Selection select(const IndexShape& shape, const IndexInputs& inputs, int64_t bound_bytes,
                 RandomStream& random) {
  const std::vector<Real> q(inputs.q.begin(), inputs.q.end());
  const std::vector<Real> weights(inputs.weights.begin(), inputs.weights.end());
  const std::vector<Real> pooled(inputs.pooled.begin(), inputs.pooled.end());
  const int64_t num_pools = inputs.tokens / shape.pool_tokens;
  const auto list_size = static_cast<size_t>(inputs.tokens * shape.top_pools);
  std::vector<Real> scores(list_size);
  std::vector<Real> part_scores(list_size);
  std::vector<int32_t> pools(list_size);
  std::vector<int32_t> part_pools(list_size);
  clear_top_pools(shape, inputs.tokens, scores.data(), pools.data());
  const int64_t cut_query = random.between(0, inputs.tokens);
  const int64_t cut_pool = random.between(0, num_pools);
  IndexScorer<Real> scorer(shape, bound_bytes);
  EXPECT_LE(scorer.work_bytes(), bound_bytes);
  const bool back_first = random.below(2) == 0;
  for (const Range queries : {Range{0, cut_query}, Range{cut_query, inputs.tokens}}) {
    for (const bool back : {back_first, !back_first}) {
      const Range keys = back ? Range{cut_pool, num_pools} : Range{0, cut_pool};
      clear_top_pools(shape, queries.size(), part_scores.data(), part_pools.data());
      scorer.score({q.data() + queries.begin * shape.heads * shape.width,
                    weights.data() + queries.begin * shape.heads, queries.begin, queries.size(),
                    part_scores.data(), part_pools.data()},
                   {pooled.data() + keys.begin * shape.width, keys.begin, keys.size()});
      merge_top_pools(shape, queries.size(), part_scores.data(), part_pools.data(),
                      scores.data() + queries.begin * shape.top_pools,
                      pools.data() + queries.begin * shape.top_pools);
    }
  }
  Selection selection;
  for (int64_t query = 0; query < inputs.tokens; ++query) {
    std::vector<int32_t> best;
    for (int64_t idx = 0; idx < shape.top_pools; ++idx) {
      const auto at = static_cast<size_t>(query * shape.top_pools + idx);
      EXPECT_FALSE(scores[at] == 0 && std::signbit(scores[at])) << "a list holds -0";
      if (pools[at] >= 0) best.push_back(pools[at]);
    }
    std::sort(best.begin(), best.end());
    selection.push_back(std::move(best));
  }
  return selection;
}

Selection must_choose_only(const IndexShape& shape, Selection selection) {
  for (size_t query = 0; query < selection.size(); ++query) {
    if (!shape.must_choose(static_cast<int64_t>(query))) selection[query].clear();
  }
  return selection;
}

TEST(PooledKeys, EqualPlainLoops) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    RandomStream random(seed, "pooled keys test");
    const int64_t pool_tokens = random.between(1, 5);
    const int64_t width = random.between(1, 9);
    const int64_t pools = random.between(0, 6);
    const Doubles keys = normals(random, pools * pool_tokens * width);
    const Doubles gates = normals(random, pools * pool_tokens * width);
    Doubles pooled(static_cast<size_t>(pools * width));
    pool_keys(keys.data(), gates.data(), {0, pools}, pool_tokens, width, pooled.data());
    const Doubles expected = reference::pool_keys(keys, gates, static_cast<size_t>(pool_tokens),
                                                  static_cast<size_t>(width));
    EXPECT_LE(worst_difference(pooled, expected), 1e-13) << "seed " << seed;
  }
}

TEST(IndexScoring, SelectsWhatAPlainSortSelects) {
  for (uint64_t seed = 0; seed < 80 && !HasFailure(); ++seed) {
    RandomStream random(seed, "index scoring test");
    IndexShape shape = random_index_shape(random);
    const int64_t tokens = random.between(1, seed % 4 == 1 ? 5 : 300);
    const bool with_ties = seed % 2 == 0;
    if (with_ties) shape.scale = 0.5;  // then every sum is exact, in float32 too
    const int64_t bound_bytes = index_blocks(shape, 8, 1 << 30).bytes >> random.below(3);
    SCOPED_TRACE(text("seed ", seed, ": ", tokens, " tokens, pools of ", shape.pool_tokens,
                      ", top ", shape.top_pools, with_ties ? ", with ties" : ""));
    const IndexInputs inputs = random_index(random, shape, tokens, with_ties);
    const Selection expected = must_choose_only(
        shape, reference::select_pools(shape, inputs.q, inputs.weights, inputs.pooled));
    EXPECT_EQ(select<double>(shape, inputs, bound_bytes, random), expected);
    if (with_ties) {
      EXPECT_EQ(select<float>(shape, inputs, bound_bytes, random), expected);
    }
  }
}

TEST(IndexScoring, BudgetBorder) {
  const IndexShape shape{.heads = 2, .width = 8, .pool_tokens = 4, .top_pools = 8, .scale = 0.5};
  EXPECT_FALSE(shape.must_choose(34));  // 8 pools and a tail of 3
  EXPECT_TRUE(shape.must_choose(35));
  for (int64_t tokens = 30; tokens <= 40; ++tokens) {
    RandomStream random(static_cast<uint64_t>(tokens), "index budget test");
    const IndexInputs inputs = random_index(random, shape, tokens, false);
    const Selection expected =
        reference::select_pools(shape, inputs.q, inputs.weights, inputs.pooled);
    EXPECT_EQ(select<double>(shape, inputs, 1 << 20, random), must_choose_only(shape, expected));
    EXPECT_EQ(std::ssize(expected.back()), std::min<int64_t>(8, tokens / 4));
  }
}

// All products are negative, so every score is a zero, -0 under a negative weight: the first pools
// win. A single positive score must win over them.
TEST(IndexScoring, ZerosOfBothSignsTie) {
  const IndexShape shape{.heads = 1, .width = 1, .pool_tokens = 1, .top_pools = 3, .scale = 1};
  IndexInputs inputs{.q = Doubles(9, 1.0), .weights = Doubles(9, -1.0), .pooled = Doubles(9, -2.0)};
  inputs.tokens = 9;
  RandomStream random(1, "zeros");
  EXPECT_EQ(select<double>(shape, inputs, 1 << 20, random)[8], (std::vector<int32_t>{0, 1, 2}));
  inputs.weights.assign(9, 1.0);
  inputs.pooled[6] = 1;
  EXPECT_EQ(select<double>(shape, inputs, 1 << 20, random)[8], (std::vector<int32_t>{0, 1, 6}));
}

TEST(IndexScoring, NotANumberLoses) {
  const IndexShape shape{.heads = 1, .width = 1, .pool_tokens = 1, .top_pools = 2, .scale = 1};
  IndexInputs inputs{.q = Doubles(5, 1.0), .weights = Doubles(5, 1.0), .pooled = {1, 2, 3, 4, 5}};
  inputs.tokens = 5;
  inputs.pooled[4] = std::numeric_limits<double>::quiet_NaN();
  RandomStream random(1, "nan");
  EXPECT_EQ(select<double>(shape, inputs, 1 << 20, random)[4], (std::vector<int32_t>{2, 3}));
}

TEST(IndexScoring, WorkBufferKeepsToItsBound) {
  const IndexShape released{
      .heads = 32, .width = 128, .pool_tokens = 4, .top_pools = 512, .scale = 0.1};
  const int64_t whole = index_blocks(released, 4, int64_t{256} << 20).bytes;
  EXPECT_LE(whole, int64_t{8} << 20);
  for (int64_t bound = whole; bound > 60000; bound /= 2) {
    EXPECT_LE(index_blocks(released, 4, bound).bytes, bound);
  }
  EXPECT_THROW(index_blocks(released, 4, 10000), UserError);
}

struct AttentionCase {
  SparseAttentionShape shape;
  int64_t tokens;
  int64_t budget;
  Doubles q, latents, d_o;
  Selection selected;

  std::vector<int32_t> padded() const {
    std::vector<int32_t> pools;
    for (std::vector<int32_t> row : selected) {
      row.resize(static_cast<size_t>(budget), -1);
      pools.insert(pools.end(), row.begin(), row.end());
    }
    return pools;
  }
};

AttentionCase random_case(RandomStream& random, int64_t max_tokens) {
  AttentionCase c;
  c.shape = {.heads = random.between(1, 9),
             .width = random.between(1, 40),
             .pool_tokens = random.between(1, 5)};
  c.shape.scale = 1 / std::sqrt(static_cast<double>(c.shape.width));
  c.tokens = random.between(1, max_tokens);
  c.budget = random.between(1, 40);
  c.q = normals(random, c.tokens * c.shape.row_size());
  c.d_o = normals(random, c.tokens * c.shape.row_size());
  c.latents = normals(random, c.tokens * c.shape.width);
  for (int64_t query = 0; query < c.tokens; ++query) {
    const int64_t visible = (query + 1) / c.shape.pool_tokens;
    std::vector<int32_t> pools;
    for (const int64_t pool : random.permutation(visible)) {
      if (std::ssize(pools) < c.budget) pools.push_back(static_cast<int32_t>(pool));
    }
    std::sort(pools.begin(), pools.end());
    c.selected.push_back(std::move(pools));
  }
  return c;
}

template <typename Real>
reference::SparseAttentionResult run_kernel(const AttentionCase& c, int64_t query_block,
                                            int64_t key_parts) {
  const std::vector<Real> q(c.q.begin(), c.q.end());
  const std::vector<Real> d_o(c.d_o.begin(), c.d_o.end());
  std::vector<Real> latents(c.latents.begin(), c.latents.end());
  std::vector<Real> o(q.size());
  std::vector<Real> d_q(q.size());
  std::vector<Real> d_latents(latents.size());
  std::vector<Real> lse(static_cast<size_t>(c.tokens * c.shape.heads));
  // In two segments.
  const int64_t cut = c.tokens / 2;
  const std::vector<LatentRows<const Real>> rows = {
      {{0, cut}, latents.data()}, {{cut, c.tokens}, latents.data() + cut * c.shape.width}};
  const std::vector<LatentRows<Real>> d_rows = {
      {{0, cut}, d_latents.data()}, {{cut, c.tokens}, d_latents.data() + cut * c.shape.width}};
  const std::vector<int32_t> pools = c.padded();
  const SparseQueries<Real> queries{q.data(), pools.data(), 0};
  SparseAttentionWork<Real> work(c.shape, c.budget);
  work.forward(queries, {0, c.tokens}, rows, o.data(), lse.data());
  const auto block_values = static_cast<size_t>(query_block * work.row_values());
  std::vector<Real> weights(block_values);
  std::vector<Real> d_scores(block_values);
  for (int64_t begin = 0; begin < c.tokens; begin += query_block) {
    const Range block{begin, std::min(c.tokens, begin + query_block)};
    for (int64_t row = block.begin; row < block.end; ++row) {
      const int64_t at = (row - begin) * work.row_values();
      work.query_gradient(queries, {o.data(), lse.data(), d_o.data()}, row, rows,
                          {weights.data() + at, d_scores.data() + at}, d_q.data());
    }
    for (int64_t part = key_parts; part-- > 0;) {
      work.latent_gradient(queries, d_o.data(), block, {weights.data(), d_scores.data()},
                           {part * c.tokens / key_parts, (part + 1) * c.tokens / key_parts},
                           d_rows);
    }
  }
  const auto doubles = [](const std::vector<Real>& values) {
    return Doubles(values.begin(), values.end());
  };
  return {doubles(o), doubles(lse), doubles(d_q), doubles(d_latents)};
}

TEST(SparseAttention, EqualsPlainLoops) {
  for (uint64_t seed = 0; seed < 40 && !HasFailure(); ++seed) {
    RandomStream random(seed, "sparse attention test");
    const AttentionCase c = random_case(random, seed % 4 == 0 ? 5 : 150);
    SCOPED_TRACE(text("seed ", seed, ": ", c.tokens, " tokens, ", c.shape.heads, " heads of ",
                      c.shape.width, ", pools of ", c.shape.pool_tokens, ", budget ", c.budget));
    const auto expected = reference::sparse_attention(c.shape, c.q, c.latents, c.selected, c.d_o);
    const auto got = run_kernel<double>(c, 7, 1);
    EXPECT_LE(worst_difference(got.o, expected.o), 1e-12);
    EXPECT_LE(worst_difference(got.lse, expected.lse), 1e-12);
    EXPECT_LE(worst_difference(got.d_q, expected.d_q), 1e-12);
    EXPECT_LE(worst_difference(got.d_latents, expected.d_latents), 1e-11);
    const auto single = run_kernel<float>(c, 16, 1);
    EXPECT_LE(worst_difference(single.o, expected.o), 1e-4);
    EXPECT_LE(worst_difference(single.d_latents, expected.d_latents), 5e-3);
    // Another block and other parts of the keys: the same bits.
    EXPECT_EQ(run_kernel<double>(c, 32, 3).d_latents, got.d_latents);
  }
}

TEST(SparseAttention, ReferenceGradientsAreFiniteDifferences) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    RandomStream random(seed, "sparse attention differences");
    AttentionCase c = random_case(random, 14);
    const auto result = reference::sparse_attention(c.shape, c.q, c.latents, c.selected, c.d_o);
    const auto objective = [&] {
      const auto o = reference::sparse_attention(c.shape, c.q, c.latents, c.selected).o;
      double sum = 0;
      for (size_t idx = 0; idx < o.size(); ++idx) sum += o[idx] * c.d_o[idx];
      return sum;
    };
    const auto check = [&](Doubles& values, const Doubles& gradient) {
      for (size_t idx = 0; idx < values.size(); idx += 3) {
        const double center = values[idx];
        constexpr double kStep = 1e-5;
        values[idx] = center + kStep;
        const double up = objective();
        values[idx] = center - kStep;
        const double down = objective();
        values[idx] = center;
        EXPECT_NEAR((up - down) / (2 * kStep), gradient[idx], 1e-7) << "seed " << seed;
      }
    };
    check(c.q, result.d_q);
    check(c.latents, result.d_latents);
  }
}

// The comparison above would notice a single wrong pool.
TEST(SparseAttention, AFlippedPoolIsNoticed) {
  RandomStream random(3, "flipped pool");
  AttentionCase c;
  c.shape = {.heads = 2, .width = 8, .pool_tokens = 4, .scale = 0.3};
  c.tokens = 60;
  c.budget = 8;
  c.q = normals(random, c.tokens * c.shape.row_size());
  c.d_o = normals(random, c.tokens * c.shape.row_size());
  c.latents = normals(random, c.tokens * c.shape.width);
  for (int64_t query = 0; query < c.tokens; ++query) {
    c.selected.emplace_back();
    for (int32_t pool = 0; pool < std::min<int64_t>(8, (query + 1) / 4); ++pool) {
      c.selected.back().push_back(pool);
    }
  }
  const auto expected = reference::sparse_attention(c.shape, c.q, c.latents, c.selected, c.d_o);
  c.selected.back()[7] = 12;
  const auto got = run_kernel<double>(c, 7, 1);
  EXPECT_GE(worst_difference(got.o, expected.o), 1e-3);
  EXPECT_GE(worst_difference(got.d_latents, expected.d_latents), 1e-3);
}

TEST(SparseAttention, AMissingLatentIsNamed) {
  const SparseAttentionShape shape{.heads = 1, .width = 2, .pool_tokens = 4, .scale = 1};
  const Doubles q(2, 1.0);
  const Doubles latents(6, 1.0);
  const std::vector<int32_t> pools = {1};
  Doubles o(2);
  Doubles lse(1);
  SparseAttentionWork<double> work(shape, 1);
  const std::vector<LatentRows<const double>> rows = {{{4, 7}, latents.data()}};
  const SparseQueries<double> queries{q.data(), pools.data(), 7};
  EXPECT_THROW(work.forward(queries, {0, 1}, rows, o.data(), lse.data()), InternalError);
}

}  // namespace
}  // namespace longspan
