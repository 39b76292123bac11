// Attention passes on thread ranks against plain loops over whole documents: random layouts, random
// valid plans (rectangles, partial results, relays, detours, resident rows), home plans.
#include "attention/attention_pass.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "attention/test_arrays.h"
#include "comm/run_ranks.h"
#include "kernels/cpu/reference_attention.h"
#include "planner/home_plan.h"
#include "planner/planner_test_layouts.h"
#include "planner/random_plan.h"

namespace longspan {
namespace {

// Values of a whole micro-batch, by line position.
struct LineValues {
  std::vector<double> q, k, v, d_o;           // inputs
  std::vector<double> o, lse, d_q, d_k, d_v;  // results
};

LineValues random_inputs(RandomStream& random, const TokenLayout& layout,
                         const AttentionShape& shape) {
  const int64_t tokens = layout.num_tokens();
  LineValues line;
  line.q = random_rows<double>(random, tokens * shape.query_row_size());
  line.k = random_rows<double>(random, tokens * shape.key_row_size());
  line.v = random_rows<double>(random, tokens * shape.key_row_size());
  line.d_o = random_rows<double>(random, tokens * shape.query_row_size());
  line.o.resize(line.q.size());
  line.d_q.resize(line.q.size());
  line.d_k.resize(line.k.size());
  line.d_v.resize(line.k.size());
  line.lse.resize(static_cast<size_t>(tokens * shape.heads));
  return line;
}

void compute_reference(const TokenLayout& layout, const AttentionShape& shape, LineValues* line) {
  for (int32_t document = 0; document < layout.num_documents(); ++document) {
    const Range rows = layout.document(document);
    const AttentionTile tile{rows.size(), rows.size(), 0};
    const int64_t query_at = rows.begin * shape.query_row_size();
    const int64_t key_at = rows.begin * shape.key_row_size();
    const int64_t lse_at = rows.begin * shape.heads;
    reference_attention_forward<double>(tile, shape, line->q.data() + query_at,
                                        line->k.data() + key_at, line->v.data() + key_at,
                                        line->o.data() + query_at, line->lse.data() + lse_at);
    reference_attention_backward<double>(
        tile, shape,
        {line->q.data() + query_at, line->k.data() + key_at, line->v.data() + key_at,
         line->o.data() + query_at, line->lse.data() + lse_at, line->d_o.data() + query_at},
        {line->d_q.data() + query_at, line->d_k.data() + key_at, line->d_v.data() + key_at});
  }
}

// Walks a pass as the step schedule does: a group as soon as its rounds have arrived.
void walk(const AttentionPlan& plan, int rank, AttentionPass& pass) {
  const std::vector<LaunchGroup>& groups = plan.servers[static_cast<size_t>(rank)].groups;
  int64_t next_group = 0;
  const auto run_groups = [&](int finished) {
    while (next_group < std::ssize(groups) &&
           groups[static_cast<size_t>(next_group)].after_round <= finished) {
      pass.run_group(next_group++);
    }
  };
  for (int round = 0; round < std::ssize(plan.out); ++round) {
    pass.start_out(round);
    run_groups(round);
    pass.finish_out(round);
  }
  run_groups(static_cast<int>(plan.out.size()));
  for (int round = 0; round < std::ssize(plan.back); ++round) {
    pass.start_back(round);
    pass.finish_back(round);
  }
}

class RankRun {
 public:
  RankRun(const TokenLayout& layout, const AttentionShape& shape, Communicator& comm,
          const LineValues& inputs, LineValues* results)
      : layout_(layout), shape_(shape), comm_(comm), inputs_(inputs), results_(results) {}

  void run(const std::vector<ChunkPlans>& plans, int band) {
    RowStore left_there;
    for (int chunk = 0; chunk < layout_.num_chunks(); ++chunk) {
      if (band > 0 && chunk % band == 0) left_there = RowStore();
      forward(plans[static_cast<size_t>(chunk)].forward, chunk, &left_there);
    }
    RowAccumulator d_keys(
        normalize(layout_.pieces_before(layout_.num_chunks(), comm_.rank())),
        {{shape_.key_heads, shape_.head_width}, {shape_.key_heads, shape_.head_width}},
        at::kDouble);
    left_there = RowStore();
    for (int chunk = layout_.num_chunks() - 1; chunk >= 0; --chunk) {
      if (band > 0 && (chunk + 1) % band == 0) left_there = RowStore();
      backward(plans[static_cast<size_t>(chunk)].backward, chunk, d_keys, &left_there);
    }
    for (const Range& piece : layout_.pieces_before(layout_.num_chunks(), comm_.rank())) {
      if (piece.empty()) continue;
      const std::vector<at::Tensor> sums = d_keys.rows(piece);
      write(sums[0], piece, &results_->d_k);
      write(sums[1], piece, &results_->d_v);
    }
  }

 private:
  static at::Tensor rows(const std::vector<double>& line, const Range& range,
                         const std::vector<int64_t>& row_shape) {
    std::vector<int64_t> sizes = {range.size()};
    int64_t row_size = 1;
    for (const int64_t extent : row_shape) {
      sizes.push_back(extent);
      row_size *= extent;
    }
    const auto first = line.begin() + range.begin * row_size;
    return tensor_of(std::vector<double>(first, first + range.size() * row_size), sizes);
  }
  at::Tensor query_rows(const std::vector<double>& line, const Range& range) const {
    return rows(line, range, {shape_.heads, shape_.head_width});
  }
  at::Tensor key_rows(const std::vector<double>& line, const Range& range) const {
    return rows(line, range, {shape_.key_heads, shape_.head_width});
  }
  static void write(const at::Tensor& tensor, const Range& range, std::vector<double>* line) {
    if (range.empty()) return;
    const std::vector<double> values = values_of<double>(tensor);
    const int64_t row_size = std::ssize(values) / range.size();
    std::copy(values.begin(), values.end(), line->begin() + range.begin * row_size);
  }

  RowStore keys(int chunk, const RowStore& left_there) const {
    RowStore store;
    for (const Range& piece : layout_.pieces_before(chunk + 1, comm_.rank())) {
      store.add(piece, {key_rows(inputs_.k, piece), key_rows(inputs_.v, piece)});
    }
    store.add(left_there);
    return store;
  }
  AttentionPassOptions options(const char* name, int chunk) const {
    return {shape_, at::kDouble, 4096 + 1024 * chunk, text(name, ", chunk ", chunk)};
  }

  void forward(const AttentionPlan& plan, int chunk, RowStore* left_there) {
    const Range piece = layout_.piece(chunk, comm_.rank());
    AttentionForwardPass pass(plan, layout_, comm_, options("forward", chunk));
    pass.begin(query_rows(inputs_.q, piece), keys(chunk, *left_there));
    walk(plan, comm_.rank(), pass);
    const AttentionForwardPass::Result result = pass.finish();
    write(result.o_THK, piece, &results_->o);
    write(result.lse_TH, piece, &results_->lse);
    left_there->add(pass.key_rows());
  }

  void backward(const AttentionPlan& plan, int chunk, const RowAccumulator& d_keys,
                RowStore* left_there) {
    const Range piece = layout_.piece(chunk, comm_.rank());
    AttentionBackwardPass pass(plan, layout_, comm_, options("backward", chunk));
    pass.begin({query_rows(inputs_.q, piece), query_rows(results_->o, piece),
                rows(results_->lse, piece, {shape_.heads}), query_rows(inputs_.d_o, piece)},
               keys(chunk, *left_there), d_keys);
    walk(plan, comm_.rank(), pass);
    write(pass.finish(), piece, &results_->d_q);
    left_there->add(pass.key_rows());
  }

  const TokenLayout& layout_;
  const AttentionShape& shape_;
  Communicator& comm_;
  const LineValues& inputs_;
  LineValues* results_;
};

LineValues run_all_ranks(const TokenLayout& layout, const AttentionShape& shape,
                         const std::vector<ChunkPlans>& plans, int band, const LineValues& inputs) {
  // Ranks write disjoint rows.
  LineValues results = inputs;
  for (std::vector<double>* values :
       {&results.o, &results.lse, &results.d_q, &results.d_k, &results.d_v}) {
    std::fill(values->begin(), values->end(), std::nan(""));
  }
  run_ranks(layout.num_ranks(), {.stall_timeout_s = 100}, [&](Communicator& comm) {
    at::set_num_threads(1);
    RankRun(layout, shape, comm, inputs, &results).run(plans, band);
  });
  return results;
}

AttentionShape random_shape(RandomStream& random) {
  AttentionShape shape;
  shape.key_heads = random.between(1, 2);
  shape.heads = shape.key_heads * random.between(1, 2);
  shape.head_width = random.between(1, 6);
  shape.scale = 1 / std::sqrt(static_cast<double>(shape.head_width));
  return shape;
}

void expect_equal(const LineValues& got, const LineValues& expected) {
  EXPECT_LE(relative_error(got.o, expected.o), 1e-11) << "O";
  EXPECT_LE(relative_error(got.lse, expected.lse), 1e-11) << "LSE";
  EXPECT_LE(relative_error(got.d_v, expected.d_v), 1e-11) << "dV";
  // One-token documents have dQ = dK = 0 up to rounding: measured beside dV, their scale.
  std::vector<double> d_q = got.d_q;
  std::vector<double> expected_d_q = expected.d_q;
  d_q.insert(d_q.end(), expected.d_v.begin(), expected.d_v.end());
  expected_d_q.insert(expected_d_q.end(), expected.d_v.begin(), expected.d_v.end());
  EXPECT_LE(relative_error(d_q, expected_d_q), 1e-11) << "dQ";
  std::vector<double> d_k = got.d_k;
  std::vector<double> expected_d_k = expected.d_k;
  d_k.insert(d_k.end(), expected.d_v.begin(), expected.d_v.end());
  expected_d_k.insert(expected_d_k.end(), expected.d_v.begin(), expected.d_v.end());
  EXPECT_LE(relative_error(d_k, expected_d_k), 1e-11) << "dK";
}

TEST(AttentionPass, AnyPlanEqualsWholeDocuments) {
  for (uint64_t seed = 0; seed < 60 && !HasFailure(); ++seed) {
    RandomStream random(seed, "attention pass test");
    const TokenLayout layout =
        random_layout(random, {.max_documents = 6, .max_document_tokens = 220});
    const AttentionShape shape = random_shape(random);
    const auto band = static_cast<int>(random.between(0, 3));
    const bool home = seed % 6 == 0;
    SCOPED_TRACE(text("seed ", seed, ": ", layout.num_ranks(), " ranks, ", layout.num_chunks(),
                      " chunks, ", layout.num_tokens(), " tokens, ", home ? "home" : "random",
                      " plans, resident band ", band));
    const std::vector<ChunkPlans> plans =
        home ? home_plans(layout) : random_chunk_plans(layout, seed, {.max_tasks = 12}, band);
    LineValues expected = random_inputs(random, layout, shape);
    const LineValues got = run_all_ranks(layout, shape, plans, band, expected);
    compute_reference(layout, shape, &expected);
    expect_equal(got, expected);
    if (seed % 4 != 0) continue;
    const LineValues again = run_all_ranks(layout, shape, plans, band, expected);
    EXPECT_TRUE(got.o == again.o && got.lse == again.lse && got.d_q == again.d_q &&
                got.d_k == again.d_k && got.d_v == again.d_v)
        << "the same run gave other bits";
  }
}

TEST(AttentionPass, OneRankNeedsNothingButItsResults) {
  const TokenLayout layout = TokenLayout::make({300, 1, 5}, {});
  const AttentionShape shape{.heads = 4, .key_heads = 2, .head_width = 8, .scale = 1};
  const AttentionPlan plan = home_plan(layout, 0, Direction::kForward);
  const AttentionBufferSizes sizes = attention_buffer_sizes(plan, layout, 0, shape, {4, 4});
  EXPECT_EQ(sizes.home_result_bytes, 306 * (4 * 8 + 4) * 4);
  EXPECT_EQ(sizes.total_bytes(), sizes.home_result_bytes);
}

TEST(AttentionPass, StepsOutOfOrderAreRefused) {
  const TokenLayout layout = TokenLayout::make({200}, {});
  const AttentionShape shape{.heads = 1, .key_heads = 1, .head_width = 2, .scale = 1};
  const AttentionPlan plan = home_plan(layout, 0, Direction::kForward);
  run_ranks(1, {}, [&](Communicator& comm) {
    AttentionForwardPass pass(plan, layout, comm, {shape, at::kFloat, 0, "forward"});
    EXPECT_THROW(pass.run_group(0), InternalError);
    RowStore keys;
    const at::Tensor rows = at::full({200, 1, 2}, 0.5, at::kFloat);
    keys.add({0, 200}, {rows, rows});
    EXPECT_THROW(pass.begin(at::full({200, 1, 2}, 0.5, at::kDouble), keys), InternalError);
  });
  run_ranks(1, {}, [&](Communicator& comm) {
    AttentionForwardPass pass(plan, layout, comm, {shape, at::kFloat, 0, "forward"});
    const at::Tensor rows = at::full({200, 1, 2}, 0.5, at::kFloat);
    RowStore keys;
    keys.add({0, 200}, {rows, rows});
    pass.begin(rows, keys);
    EXPECT_THROW(pass.finish(), InternalError);
    EXPECT_THROW(pass.run_group(1), InternalError);
    pass.run_group(0);
    EXPECT_NO_THROW(pass.finish());
    EXPECT_THROW(pass.start_out(0), InternalError);
  });
}

}  // namespace
}  // namespace longspan
