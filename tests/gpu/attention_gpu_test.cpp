// Attention on a GPU against the CPU kernels in float64: random slices over several sources, under
// any diagonal, with rows that see nothing, for the fast kernel and the plain one; and LSE, empty
// rows and merging as the rest of the program expects them.
#include "attention/attention_kernel.h"
#include "attention/library_attention.h"
#include "attention/row_arithmetic.h"
#include "base/error.h"
#include "base/random.h"
#include "gpu_test.h"

namespace longspan {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

class GpuAttention : public GpuTest {};

struct Case {
  AttentionShape shape;
  std::vector<int64_t> query_rows;  // of the sources
  std::vector<int64_t> key_rows;
  std::vector<AttentionSlice> slices;
};

// Documents with keys and queries of their own, each in one or two slices over their keys.
Case random_case(RandomStream& random, bool fast) {
  Case made;
  const std::vector<int64_t> widths =
      fast ? std::vector<int64_t>{8, 64, 128, 256} : std::vector<int64_t>{1, 6, 40, 128};
  made.shape.key_heads = random.between(1, 3);
  made.shape.heads = made.shape.key_heads * random.between(1, 4);
  made.shape.head_width = widths[random.below(widths.size())];
  made.shape.scale = 1 / std::sqrt(static_cast<double>(made.shape.head_width));
  const auto sources = random.between(1, 3);
  for (int64_t source = 0; source < sources; ++source) {
    made.query_rows.push_back(0);
    made.key_rows.push_back(0);
  }
  const auto documents = random.between(1, 5);
  for (int32_t document = 0; document < documents; ++document) {
    const auto query_source = static_cast<int32_t>(random.between(0, sources - 1));
    const auto key_source = static_cast<int32_t>(random.between(0, sources - 1));
    int64_t& query_begin = made.query_rows[static_cast<size_t>(query_source)];
    int64_t& key_begin = made.key_rows[static_cast<size_t>(key_source)];
    const int64_t queries = random.between(1, 200);
    const int64_t keys = random.between(1, 200);
    const int64_t diagonal =
        random.below(2) == 0 ? keys - queries : random.between(-queries, keys + 5);
    const int64_t cut = random.below(2) == 0 ? random.between(0, keys) : keys;
    const Range rows{query_begin, query_begin + queries};
    made.slices.push_back(
        {document, query_source, key_source, rows, {key_begin, key_begin + cut}, diagonal});
    if (cut < keys) {
      made.slices.push_back({document,
                             query_source,
                             key_source,
                             rows,
                             {key_begin + cut, key_begin + keys},
                             diagonal - cut});
    }
    query_begin += queries;
    key_begin += keys;
  }
  return made;
}

at::Tensor normal(RandomStream& random, std::vector<int64_t> sizes, at::ScalarType type) {
  at::Tensor values = at::empty(sizes, at::kDouble);
  double* data = values.data_ptr<double>();
  for (int64_t i = 0; i < values.numel(); ++i) data[i] = random.normal();
  return values.to(type);
}

// The same values for every run of a seed, rounded to `type`, computed with in `run_type`.
class AttentionRun {
 public:
  AttentionRun(const Case& made, uint64_t seed, at::ScalarType type,
               const at::TensorOptions& options)
      : made_(made), options_(options) {
    RandomStream random(seed, "values");
    const auto sums = options.dtype(accumulate_type(at::typeMetaToScalarType(options.dtype())));
    const AttentionShape& shape = made.shape;
    for (const int64_t rows : made.query_rows) {
      const std::vector<int64_t> sizes = {rows, shape.heads, shape.head_width};
      q_.push_back(normal(random, sizes, type).to(options));
      d_o_.push_back(normal(random, sizes, type).to(options));
      o_.push_back(at::zeros(sizes, sums));
      lse_.push_back(at::full({rows, shape.heads}, kNone, sums));
      d_q_.push_back(at::zeros(sizes, sums));
    }
    for (const int64_t rows : made.key_rows) {
      const std::vector<int64_t> sizes = {rows, shape.key_heads, shape.head_width};
      k_.push_back(normal(random, sizes, type).to(options));
      v_.push_back(normal(random, sizes, type).to(options));
      d_k_.push_back(at::zeros(sizes, sums));
      d_v_.push_back(at::zeros(sizes, sums));
    }
  }

  std::vector<at::Tensor> compute() {
    RowStore queries;
    RowStore keys;
    for (size_t i = 0; i < q_.size(); ++i) add(&queries, {q_[i], o_[i], lse_[i]});
    for (size_t i = 0; i < k_.size(); ++i) add(&keys, {k_[i], v_[i]});
    attention_forward(made_.shape, made_.slices, queries, keys);
    RowStore backward_queries;
    RowStore backward_keys;
    for (size_t i = 0; i < q_.size(); ++i) {
      const at::Tensor o = o_[i].to(options_);
      add(&backward_queries,
          {q_[i], d_o_[i], lse_[i], row_delta(made_.shape, o, d_o_[i]), d_q_[i], o});
    }
    for (size_t i = 0; i < k_.size(); ++i) add(&backward_keys, {k_[i], v_[i], d_k_[i], d_v_[i]});
    attention_backward(made_.shape, made_.slices, backward_queries, backward_keys);
    return {joined(o_), joined(lse_), joined(d_q_), joined(d_k_), joined(d_v_)};
  }

 private:
  // Sources without rows keep their number.
  static void add(RowStore* store, std::vector<at::Tensor> tensors) {
    const int64_t begin = 1000 * store->num_sources();
    if (tensors[0].size(0) == 0) {
      for (at::Tensor& tensor : tensors) {
        auto sizes = tensor.sizes().vec();
        sizes[0] = 1;
        tensor = at::zeros(sizes, tensor.options());
      }
    }
    const Range line{begin, begin + tensors[0].size(0)};
    store->add(line, std::move(tensors));
  }

  static at::Tensor joined(const std::vector<at::Tensor>& parts) {
    return at::cat(parts).to(at::kDouble).cpu();
  }

  const Case& made_;
  at::TensorOptions options_;
  std::vector<at::Tensor> q_, d_o_, o_, lse_, d_q_, k_, v_, d_k_, d_v_;
};

void expect_equals_cpu(at::ScalarType type, bool fast, uint64_t seed) {
  RandomStream random(seed, "attention case");
  const Case made = random_case(random, fast);
  const auto choice = attention_kernel_for(made.shape, type, kGpu);
  EXPECT_EQ(choice.fast, fast && type == at::kBFloat16);
  const auto expected = AttentionRun(made, seed, type, at::kDouble).compute();
  const auto options = at::TensorOptions(type).device(kGpu);
  const auto found = AttentionRun(made, seed, type, options).compute();
  const char* const names[] = {"o", "lse", "d_q", "d_k", "d_v"};
  // bfloat16: probabilities and dS are rounded before the products, results after them; d_q, d_k
  // and d_v also see O rounded. Each is 2^-9 of a term whose signs are random: together under 2 %.
  const double bound = type == at::kBFloat16 ? 0.02 : 50 * rounding_of(type);
  EXPECT_TRUE(at::isneginf(found[1]).equal(at::isneginf(expected[1]))) << "rows without keys";
  for (size_t i = 0; i < found.size(); ++i) {
    const double error =
        i == 1 ? error_of(found[i].nan_to_num(0, 0, 0), expected[i].nan_to_num(0, 0, 0))
               : error_of(found[i], expected[i]);
    EXPECT_LE(error, i == 1 && type == at::kBFloat16 ? 1e-3 : bound) << names[i];
  }
  const auto again = AttentionRun(made, seed, type, options).compute();
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(found[i].equal(again[i])) << names[i] << " has other bits on repeat";
  }
}

TEST_F(GpuAttention, FastKernelEqualsCpu) {
  set_deterministic(true);
  check_library_attention();
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(text("seed ", seed));
    expect_equals_cpu(at::kBFloat16, /*fast=*/true, seed);
    if (testing::Test::HasFailure()) return;
  }
}

// The last `rows` queries of a document over all its keys, or over those before them alone.
struct Tail {
  int64_t before = 0;
  int64_t rows = 0;
  bool sees_own = true;
};

Case case_of(const std::vector<Tail>& tails, int64_t width) {
  Case made;
  made.shape = {.heads = 4,
                .key_heads = 2,
                .head_width = width,
                .scale = 1 / std::sqrt(static_cast<double>(width))};
  int64_t query_begin = 0;
  int64_t key_begin = 0;
  for (const Tail& tail : tails) {
    const Range queries{query_begin, query_begin + tail.rows};
    const Range keys{key_begin, key_begin + tail.before + (tail.sees_own ? tail.rows : 0)};
    const auto document = static_cast<int32_t>(made.slices.size());
    made.slices.push_back({document, 0, 0, queries, keys, tail.before});
    query_begin = queries.end;
    key_begin = keys.end;
  }
  made.query_rows = {query_begin};
  made.key_rows = {key_begin};
  return made;
}

const std::vector<std::vector<Tail>> kLongTails = {{{0, 2048}, {0, 2048}},
                                                   {{0, 100}, {0, 2500}, {0, 1}, {0, 3072}},
                                                   {{0, 1024}, {0, 1025}, {0, 1100}, {0, 1023}},
                                                   {{1500, 1200}, {300, 1100}, {3000, 100}},
                                                   {{4700, 700}, {2048, 512}, {1024, 2560}},
                                                   {{2500, 900, false}, {1300, 300, false}}};

// Long tiles go to cuDNN, as squares and rectangles that are filled up, the rest to
// FlashAttention-2.
TEST_F(GpuAttention, LongTilesEqualCpu) {
  set_deterministic(false);
  for (const std::vector<Tail>& tails : kLongTails) {
    for (const int64_t width : {64, 128}) {
      SCOPED_TRACE(text(tails.size(), " tails, the first of ", tails[0].rows, " after ",
                        tails[0].before, ", heads of ", width));
      const Case made = case_of(tails, width);
      const auto expected = AttentionRun(made, 5, at::kBFloat16, at::kDouble).compute();
      const auto found =
          AttentionRun(made, 5, at::kBFloat16, at::TensorOptions(at::kBFloat16).device(kGpu))
              .compute();
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_LE(error_of(found[i], expected[i]), i == 1 ? 1e-3 : 0.02) << "result " << i;
      }
    }
  }
}

// cuDNN forward, FlashAttention-2 backward.
TEST_F(GpuAttention, LongTilesRepeatTheirBitsIfDeterministic) {
  set_deterministic(true);
  for (const std::vector<Tail>& tails : kLongTails) {
    SCOPED_TRACE(
        text(tails.size(), " tails, the first of ", tails[0].rows, " after ", tails[0].before));
    const Case made = case_of(tails, 128);
    const auto expected = AttentionRun(made, 5, at::kBFloat16, at::kDouble).compute();
    const auto on_gpu = [&] {
      return AttentionRun(made, 5, at::kBFloat16, at::TensorOptions(at::kBFloat16).device(kGpu))
          .compute();
    };
    const auto found = on_gpu();
    const auto again = on_gpu();
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_LE(error_of(found[i], expected[i]), i == 1 ? 1e-3 : 0.02) << "result " << i;
      EXPECT_TRUE(at::equal(found[i], again[i])) << "result " << i;
    }
  }
}

TEST_F(GpuAttention, PlainKernelEqualsCpu) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    for (uint64_t seed = 0; seed < 25; ++seed) {
      SCOPED_TRACE(text("seed ", seed, " ", c10::toString(type)));
      expect_equals_cpu(type, /*fast=*/false, seed);
      if (testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace longspan
