// Sparse attention over ranks and chunks against plain loops over whole documents: random layouts
// with any borders, random and planned index plans, gathered and fetched latents, bands whose
// contexts are carried, repeated forwards.
#include "sparse_attention/sparse_attention_mix.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <mutex>
#include <numeric>

#include "attention/test_arrays.h"
#include "comm/run_ranks.h"
#include "kernels/cpu/reference_sparse_attention.h"
#include "planner/random_plan.h"
#include "sparse_attention/selected_attention.h"

namespace longspan {
namespace {

using Doubles = std::vector<double>;

struct MixCase {
  TokenLayout layout;
  IndexShape index;
  SparseAttentionShape attention;
  int band = 1;  // chunks whose whole contexts live together
  bool repeat = false;
  bool random_plans = false;
  LatentTravel travel = LatentTravel::kAuto;
  at::ScalarType type = at::kDouble;
  uint64_t seed = 0;
};

// Values of a whole micro-batch by line position.
struct Line {
  std::vector<Doubles> inputs;  // in the order of the mix
  Doubles d_o;
  Doubles o, lse, d_q, d_c;
  std::vector<std::vector<int32_t>> selected;
};

TokenLayout any_borders(RandomStream& random, int ranks, int chunks, bool with_short) {
  std::vector<int64_t> lengths(static_cast<size_t>(random.between(1, 6)));
  for (int64_t& length : lengths) {
    length = random.between(1, with_short && random.below(2) == 0 ? 5 : 140);
  }
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  std::vector<int64_t> borders = {0, tokens};
  while (std::ssize(borders) < int64_t{ranks} * chunks + 1) {
    const int64_t border = random.between(0, tokens);
    borders.push_back(border);
    // Pieces of a token or two, several in a row.
    while (random.below(3) == 0 && std::ssize(borders) < int64_t{ranks} * chunks + 1) {
      borders.push_back(std::min(tokens, borders.back() + random.between(0, 2)));
    }
  }
  std::sort(borders.begin(), borders.end());
  return TokenLayout::from_borders(lengths, chunks, ranks, borders);
}

MixCase random_case(uint64_t seed, int ranks, int chunks) {
  RandomStream random(seed, "sparse attention mix test");
  MixCase c{.layout = any_borders(random, ranks, chunks, seed % 2 == 0)};
  c.seed = seed;
  c.index = {.heads = random.between(1, 3),
             .width = random.between(1, 6),
             .pool_tokens = random.below(3) == 0 ? 2 : 4,
             .top_pools = random.between(1, 8),
             .scale = 0.5};
  c.attention = {.heads = random.between(1, 3),
                 .width = random.between(1, 9),
                 .pool_tokens = c.index.pool_tokens,
                 .scale = 0.4};
  c.band = static_cast<int>(random.between(1, chunks));
  c.repeat = random.below(2) == 0;
  c.random_plans = random.below(2) == 0;
  c.travel = static_cast<LatentTravel>(random.below(3));
  return c;
}

std::string describe(const MixCase& c) {
  std::string pieces;
  for (int chunk = 0; chunk < c.layout.num_chunks(); ++chunk) {
    for (int rank = 0; rank < c.layout.num_ranks(); ++rank) {
      pieces += text(c.layout.piece(chunk, rank));
    }
  }
  return text("seed ", c.seed, ": ", c.layout.num_ranks(), " ranks, ", c.layout.num_chunks(),
              " chunks in bands of ", c.band, ", ", c.layout.num_documents(),
              " documents, pools of ", c.index.pool_tokens, ", top ", c.index.top_pools,
              c.repeat ? ", repeated" : "", c.random_plans ? ", random plans" : "", ", travel ",
              static_cast<int>(c.travel), ", ", pieces);
}

Line random_line(const MixCase& c, const SparseAttentionMix& mix) {
  RandomStream random(c.seed, "sparse attention mix values");
  const int64_t tokens = c.layout.num_tokens();
  const auto values = [&](const std::vector<int64_t>& row) {
    int64_t count = tokens;
    for (const int64_t extent : row) count *= extent;
    return random_rows<double>(random, count);
  };
  Line line;
  for (const auto& row : mix.input_rows()) line.inputs.push_back(values(row));
  line.d_o = values(mix.output_row());
  if (c.seed % 3 == 0) {  // few distinct scores, exact in any order of sums
    for (const size_t idx : {2, 3, 4}) {
      for (double& value : line.inputs[idx]) value = std::clamp(std::round(value), -1.0, 1.0);
    }
    line.inputs[5].assign(line.inputs[5].size(), 0);
  }
  line.o.assign(line.d_o.size(), std::nan(""));
  line.d_q = line.o;
  line.d_c.assign(line.inputs[1].size(), std::nan(""));
  line.lse.assign(static_cast<size_t>(tokens * c.attention.heads), std::nan(""));
  line.selected.resize(static_cast<size_t>(tokens));
  return line;
}

Doubles part_of(const Doubles& line, int64_t tokens, const Range& range) {
  const int64_t row = std::ssize(line) / tokens;
  return {line.begin() + range.begin * row, line.begin() + range.end * row};
}

void write_part(const Doubles& part, const Range& range, int64_t tokens, Doubles* line) {
  const int64_t row = std::ssize(*line) / tokens;
  ASSERT_EQ(std::ssize(part), range.size() * row);
  std::copy(part.begin(), part.end(), line->begin() + range.begin * row);
}

Line reference_line(const MixCase& c, Line line) {
  const int64_t tokens = c.layout.num_tokens();
  for (int32_t document = 0; document < c.layout.num_documents(); ++document) {
    const Range range = c.layout.document(document);
    std::vector<Doubles> inputs;
    for (const Doubles& input : line.inputs) inputs.push_back(part_of(input, tokens, range));
    const auto whole = static_cast<size_t>(range.size() / c.index.pool_tokens *
                                           c.index.pool_tokens * c.index.width);
    inputs[4].resize(whole);
    inputs[5].resize(whole);
    const Doubles pooled =
        reference::pool_keys(inputs[4], inputs[5], static_cast<size_t>(c.index.pool_tokens),
                             static_cast<size_t>(c.index.width));
    const auto selected = reference::select_pools(c.index, inputs[2], inputs[3], pooled);
    const auto result = reference::sparse_attention(c.attention, inputs[0], inputs[1], selected,
                                                    part_of(line.d_o, tokens, range));
    write_part(result.o, range, tokens, &line.o);
    write_part(result.lse, range, tokens, &line.lse);
    write_part(result.d_q, range, tokens, &line.d_q);
    write_part(result.d_latents, range, tokens, &line.d_c);
    std::copy(selected.begin(), selected.end(), line.selected.begin() + range.begin);
  }
  return line;
}

// Plays the executor on one rank: bands forward, then backward in reverse.
class RankRun {
 public:
  RankRun(const MixCase& c, const SparseAttentionMix& mix, Communicator& comm, Line* line)
      : case_(c),
        mix_(mix),
        comm_(comm),
        line_(*line),
        whole_(static_cast<size_t>(c.layout.num_chunks())),
        carried_(whole_.size()),
        outputs_(whole_.size()),
        choices_(whole_.size()),
        gradients_(whole_.size()) {}

  void run() {
    const int chunks = case_.layout.num_chunks();
    for (int begin = 0; begin < chunks; begin += case_.band) {
      const int end = std::min(chunks, begin + case_.band);
      for (int chunk = begin; chunk < end; ++chunk) forward(chunk, begin);
      for (int chunk = begin; chunk < end; ++chunk) {
        carried_[at(chunk)] = mix_.carry(call(chunk), whole_[at(chunk)], end);
        if (case_.repeat) whole_[at(chunk)] = {};
      }
    }
    for (int begin = (chunks - 1) / case_.band * case_.band; begin >= 0; begin -= case_.band) {
      backward_band(begin, std::min(chunks, begin + case_.band));
    }
  }

 private:
  static size_t at(int chunk) { return static_cast<size_t>(chunk); }
  int64_t tokens() const { return case_.layout.num_tokens(); }
  Range piece(int chunk) const { return case_.layout.piece(chunk, comm_.rank()); }

  MixCall call(int chunk) {
    return {.layer = 3,
            .layout = &case_.layout,
            .chunk = chunk,
            .comm = &comm_,
            .tag = 8192 + kTagsPerMix * chunk,
            .op = text("sparse attention, chunk ", chunk)};
  }
  at::Tensor rows(const Doubles& line, int chunk, const std::vector<int64_t>& row) const {
    std::vector<int64_t> sizes = {piece(chunk).size()};
    sizes.insert(sizes.end(), row.begin(), row.end());
    return tensor_of(part_of(line, tokens(), piece(chunk)), sizes).to(case_.type);
  }
  std::vector<at::Tensor> inputs(int chunk) const {
    std::vector<at::Tensor> tensors;
    for (size_t idx = 0; idx < line_.inputs.size(); ++idx) {
      tensors.push_back(rows(line_.inputs[idx], chunk, mix_.input_rows()[idx]));
    }
    return tensors;
  }
  void write(const at::Tensor& tensor, int chunk, Doubles* line) {
    write_part(values_of<double>(tensor.to(at::kDouble)), piece(chunk), tokens(), line);
  }

  // Contexts of chunks before `chunk`: whole from `band_begin` on.
  std::vector<const MixContext*> contexts(int chunk, int band_begin) const {
    std::vector<const MixContext*> list;
    for (int idx = 0; idx < chunk; ++idx) {
      list.push_back(idx < band_begin ? &carried_[at(idx)] : &whole_[at(idx)]);
    }
    return list;
  }

  void forward(int chunk, int band_begin) {
    MixOutput output =
        mix_.forward(call(chunk), inputs(chunk), contexts(chunk, band_begin), choices_[at(chunk)]);
    whole_[at(chunk)] = std::move(output.context);
    outputs_[at(chunk)] = std::move(output.tensors);
    write(outputs_[at(chunk)][0], chunk, &line_.o);
    write(outputs_[at(chunk)][1], chunk, &line_.lse);
    const at::Tensor pools = choices_[at(chunk)][0];
    for (int64_t row = 0; row < pools.size(0); ++row) {
      std::vector<int32_t> selected;
      for (int64_t idx = 0; idx < pools.size(1); ++idx) {
        const int32_t pool = pools.const_data_ptr<int32_t>()[row * pools.size(1) + idx];
        if (pool >= 0) selected.push_back(pool);
      }
      line_.selected[static_cast<size_t>(piece(chunk).begin + row)] = std::move(selected);
    }
  }

  void backward_band(int begin, int end) {
    if (case_.repeat) {
      for (int chunk = begin; chunk < end; ++chunk) forward(chunk, begin);
    }
    for (int chunk = 0; chunk < end; ++chunk) {
      MixContextGradient& gradient = gradients_[at(chunk)];
      if (chunk >= begin) {
        MixContextGradient later = std::move(gradient);
        gradient = mix_.zero_gradient(call(chunk), whole_[at(chunk)], &later);
      } else if (!gradient.rows) {
        gradient = mix_.zero_gradient(call(chunk), carried_[at(chunk)], nullptr);
      }
    }
    for (int chunk = end - 1; chunk >= begin; --chunk) {
      MixBackwardInputs given{.inputs = inputs(chunk),
                              .output = outputs_[at(chunk)],
                              .output_gradient = rows(line_.d_o, chunk, mix_.output_row()),
                              .contexts = contexts(chunk + 1, begin),
                              .choices = choices_[at(chunk)]};
      for (int idx = 0; idx <= chunk; ++idx) given.gradients.push_back(&gradients_[at(idx)]);
      const std::vector<at::Tensor> gradients = mix_.backward(call(chunk), given);
      ASSERT_EQ(gradients.size(), 6U);
      write(gradients[0], chunk, &line_.d_q);
      write(gradients[1], chunk, &line_.d_c);
      for (size_t idx = 2; idx < 6; ++idx) EXPECT_FALSE(gradients[idx].defined());
    }
  }

  const MixCase& case_;
  const SparseAttentionMix& mix_;
  Communicator& comm_;
  Line& line_;
  std::vector<MixContext> whole_;
  std::vector<MixContext> carried_;
  std::vector<std::vector<at::Tensor>> outputs_;
  std::vector<std::vector<at::Tensor>> choices_;
  std::vector<MixContextGradient> gradients_;
};

SparseAttentionMix make_mix(const MixCase& c) {
  IndexPlanSource plans = planned_index_scoring(c.index, {});
  if (c.random_plans) {
    plans = [seed = c.seed](const TokenLayout& layout, int chunk) {
      return std::make_shared<const AttentionPlan>(
          random_plan(layout, chunk, Direction::kForward, seed, {.max_tasks = 10}));
    };
  }
  return SparseAttentionMix({.attention = c.attention,
                             .index = c.index,
                             .plans = plans,
                             .latents = c.travel,
                             .index_work_bytes = 1 << 20});
}

Line run_case(const MixCase& c) {
  const SparseAttentionMix mix = make_mix(c);
  Line line = random_line(c, mix);
  run_ranks(c.layout.num_ranks(), {.stall_timeout_s = 60}, [&](Communicator& comm) {
    at::set_num_threads(1);
    RankRun(c, mix, comm, &line).run();  // ranks write disjoint rows
  });
  return line;
}

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
