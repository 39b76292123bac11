// The attention kernels against plain loops: any rectangles, diagonals, sources, orders.
#include "attention/attention_kernel.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>

#include "attention/test_arrays.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/reference_attention.h"

namespace longspan {
namespace {

// One document's rectangle, cut into slices over several sources.
struct Case {
  AttentionShape shape;
  AttentionTile tile;
  std::vector<int64_t> query_borders;  // of the sources
  std::vector<int64_t> key_borders;
  std::vector<AttentionSlice> slices;
};

std::vector<int64_t> random_borders(RandomStream& random, int64_t rows, int64_t max_parts) {
  std::vector<int64_t> borders = {0, rows};
  for (int64_t cut = random.between(0, max_parts - 1); cut > 0; --cut) {
    borders.push_back(random.between(0, rows));
  }
  std::sort(borders.begin(), borders.end());
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  return borders;
}

void add_slices(const Case& made, const Range& queries, const Range& keys,
                std::vector<AttentionSlice>* slices) {
  for (size_t q = 0; q + 1 < made.query_borders.size(); ++q) {
    const Range rows = intersect(queries, {made.query_borders[q], made.query_borders[q + 1]});
    for (size_t k = 0; k + 1 < made.key_borders.size(); ++k) {
      const Range key_rows = intersect(keys, {made.key_borders[k], made.key_borders[k + 1]});
      if (rows.empty() || key_rows.empty()) continue;
      slices->push_back({0, static_cast<int32_t>(q), static_cast<int32_t>(k),
                         shift(rows, -made.query_borders[q]), shift(key_rows, -made.key_borders[k]),
                         made.tile.diagonal + rows.begin - key_rows.begin});
    }
  }
}

Case random_case(RandomStream& random) {
  Case made;
  const std::vector<int64_t> widths = {1, 3, 8, 40, 64, 72};
  made.shape.key_heads = random.between(1, 3);
  made.shape.heads = made.shape.key_heads * random.between(1, 3);
  made.shape.head_width = widths[random.below(widths.size())];
  made.shape.scale = 1 / std::sqrt(static_cast<double>(made.shape.head_width));
  const int64_t longest = random.below(4) == 0 ? 700 : 150;
  made.tile.query_rows = random.below(5) == 0 ? 1 : random.between(1, longest);
  made.tile.key_rows = random.below(5) == 0 ? 1 : random.between(1, longest);
  // Causal with keys before, full, none visible for the first rows, keys beyond all queries.
  const std::vector<int64_t> diagonals = {
      0, made.tile.key_rows - made.tile.query_rows, made.tile.key_rows, -made.tile.query_rows / 2,
      random.between(-made.tile.query_rows, made.tile.key_rows + 5)};
  made.tile.diagonal = diagonals[random.below(diagonals.size())];
  made.query_borders = random_borders(random, made.tile.query_rows, 3);
  made.key_borders = random_borders(random, made.tile.key_rows, 3);
  const std::vector<int64_t> stripes = random_borders(random, made.tile.query_rows, 3);
  std::vector<AttentionSlice> slices;
  for (size_t stripe = 0; stripe + 1 < stripes.size(); ++stripe) {
    const std::vector<int64_t> cuts = random_borders(random, made.tile.key_rows, 3);
    for (size_t cut = 0; cut + 1 < cuts.size(); ++cut) {
      add_slices(made, {stripes[stripe], stripes[stripe + 1]}, {cuts[cut], cuts[cut + 1]}, &slices);
    }
  }
  for (const int64_t idx : random.permutation(std::ssize(slices))) {
    made.slices.push_back(slices[static_cast<size_t>(idx)]);
  }
  return made;
}

// Sources over narrowed rows; sometimes with more between two rows than their own heads.
class Rows {
 public:
  Rows(const std::vector<int64_t>& borders, std::vector<at::Tensor> tensors) {
    for (size_t source = 0; source + 1 < borders.size(); ++source) {
      const Range rows{borders[source], borders[source + 1]};
      std::vector<at::Tensor> views;
      for (const at::Tensor& tensor : tensors) {
        views.push_back(tensor.narrow(0, rows.begin, rows.size()));
      }
      store_.add(rows, std::move(views));
    }
  }
  const RowStore& store() const { return store_; }

 private:
  RowStore store_;
};

at::Tensor with_gaps(const at::Tensor& rows) {
  const at::Tensor wide = at::full({rows.size(0), rows.size(1) + 2, rows.size(2)},
                                   std::numeric_limits<double>::quiet_NaN(), rows.scalar_type());
  const at::Tensor view = wide.narrow(1, 1, rows.size(1));
  view.copy_(rows);
  return view;
}

// Rounding errors of sums are taken to add like random signs: sqrt(K) products of a score, whose
// terms sum to about K * scale in absolute value, and sqrt(N) terms of a weighted sum; 16 for the
// exponential, the logarithm and the division. Backward multiplies two such quantities.
template <typename Real>
double error_bound(const Case& made) {
  if (sizeof(Real) == sizeof(double)) return 1e-12;
  const auto width = static_cast<double>(made.shape.head_width);
  const auto keys = static_cast<double>(std::max(made.tile.key_rows, made.tile.query_rows));
  const double terms = std::sqrt(width) * width * made.shape.scale + std::sqrt(keys) + 16;
  return 2 * terms * static_cast<double>(std::numeric_limits<Real>::epsilon());
}

template <typename Real>
void check_case(RandomStream& random, const Case& made) {
  const AttentionShape& shape = made.shape;
  const int64_t queries = made.tile.query_rows;
  const int64_t keys = made.tile.key_rows;
  const auto q = random_rows<Real>(random, queries * shape.query_row_size());
  const auto k = random_rows<Real>(random, keys * shape.key_row_size());
  const auto v = random_rows<Real>(random, keys * shape.key_row_size());
  const auto d_o = random_rows<Real>(random, queries * shape.query_row_size());
  const auto wide = [](const std::vector<Real>& values) {
    return std::vector<double>(values.begin(), values.end());
  };
  const auto q64 = wide(q);
  const auto k64 = wide(k);
  const auto v64 = wide(v);
  const auto d_o64 = wide(d_o);
  std::vector<double> expected_o(q.size());
  std::vector<double> expected_lse(static_cast<size_t>(queries * shape.heads));
  reference_attention_forward<double>(made.tile, shape, q64.data(), k64.data(), v64.data(),
                                      expected_o.data(), expected_lse.data());

  const std::vector<int64_t> query_sizes = {queries, shape.heads, shape.head_width};
  const std::vector<int64_t> key_sizes = {keys, shape.key_heads, shape.head_width};
  const at::ScalarType type = sizeof(Real) == sizeof(float) ? at::kFloat : at::kDouble;
  const bool gaps = random.below(2) == 0;
  const auto input = [&](const std::vector<Real>& values, const std::vector<int64_t>& sizes) {
    return gaps ? with_gaps(tensor_of(values, sizes)) : tensor_of(values, sizes);
  };
  const at::Tensor q_rows = input(q, query_sizes);
  const at::Tensor k_rows = input(k, key_sizes);
  const at::Tensor v_rows = input(v, key_sizes);
  const at::Tensor o = at::zeros(query_sizes, type);
  const at::Tensor lse =
      at::full({queries, shape.heads}, -std::numeric_limits<double>::infinity(), type);
  const Rows key_source(made.key_borders, {k_rows, v_rows});
  // Two launches: the second merges into the rows of the first.
  const size_t half = made.slices.size() / 2;
  const auto middle = made.slices.begin() + static_cast<std::ptrdiff_t>(half);
  const Rows query_source(made.query_borders, {q_rows, o, lse});
  attention_forward(shape, {made.slices.begin(), middle}, query_source.store(), key_source.store());
  attention_forward(shape, {middle, made.slices.end()}, query_source.store(), key_source.store());
  const double bound = error_bound<Real>(made);
  EXPECT_LE(relative_error(values_of<Real>(o), expected_o), bound);
  EXPECT_LE(relative_error(values_of<Real>(lse), expected_lse), bound);

  std::vector<double> d_q(q.size());
  std::vector<double> d_k(k.size());
  std::vector<double> d_v(v.size());
  reference_attention_backward<double>(
      made.tile, shape,
      {q64.data(), k64.data(), v64.data(), expected_o.data(), expected_lse.data(), d_o64.data()},
      {d_q.data(), d_k.data(), d_v.data()});
  const at::Tensor d_o_rows = input(d_o, query_sizes);
  const at::Tensor delta = at::zeros({queries, shape.heads}, type);
  attention_delta<Real>(shape, queries, o.const_data_ptr<Real>(),
                        d_o_rows.contiguous().template const_data_ptr<Real>(),
                        delta.data_ptr<Real>());
  const at::Tensor got_q = at::zeros(query_sizes, type);
  const at::Tensor got_k = at::zeros(key_sizes, type);
  const at::Tensor got_v = at::zeros(key_sizes, type);
  attention_backward(shape, made.slices,
                     Rows(made.query_borders, {q_rows, d_o_rows, lse, delta, got_q}).store(),
                     Rows(made.key_borders, {k_rows, v_rows, got_k, got_v}).store());
  // dQ and dK cancel (P (dP - delta) sums to 0 over a row): a few keys leave little but rounding,
  // so their error is measured against the parts that cancel, which are about as large as dV.
  const auto norm = [](const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value * value;
    return std::sqrt(sum);
  };
  const double parts = norm(d_v) * std::sqrt(static_cast<double>(shape.head_width)) + 1e-300;
  const auto cancelling_error = [&](const at::Tensor& got, const std::vector<double>& expected) {
    std::vector<double> difference = values_of<Real>(got);
    for (size_t idx = 0; idx < difference.size(); ++idx) difference[idx] -= expected[idx];
    return norm(difference) / std::max(norm(expected), parts);
  };
  EXPECT_LE(cancelling_error(got_q, d_q), bound);
  EXPECT_LE(cancelling_error(got_k, d_k), bound);
  EXPECT_LE(relative_error(values_of<Real>(got_v), d_v), bound);
}

template <typename Real>
void check_seeds(uint64_t first, uint64_t count) {
  for (uint64_t seed = first; seed < first + count && !testing::Test::HasFailure(); ++seed) {
    RandomStream random(seed, "attention kernel test");
    const Case made = random_case(random);
    SCOPED_TRACE(text("seed ", seed, ", H ", made.shape.heads, ", G ", made.shape.key_heads, ", K ",
                      made.shape.head_width, ", ", made.tile.query_rows, " x ", made.tile.key_rows,
                      ", diagonal ", made.tile.diagonal, ", ", made.slices.size(), " slices"));
    check_case<Real>(random, made);
  }
}

TEST(AttentionKernel, EqualsReferenceInDouble) {
  check_seeds<double>(0, 60);
}
TEST(AttentionKernel, EqualsReferenceInFloat) {
  check_seeds<float>(1000, 60);
}

TEST(AttentionKernel, RowsWithoutKeysAreEmpty) {
  const AttentionShape shape{.heads = 2, .key_heads = 1, .head_width = 4, .scale = 0.5};
  RandomStream random(7, "empty rows");
  const at::Tensor o = at::zeros({5, 2, 4}, at::kFloat);
  const at::Tensor lse = at::full({5, 2}, -std::numeric_limits<double>::infinity(), at::kFloat);
  RowStore queries;
  queries.add({0, 5}, {tensor_of(random_rows<float>(random, 40), {5, 2, 4}), o, lse});
  RowStore keys;
  keys.add({0, 9}, {tensor_of(random_rows<float>(random, 36), {9, 1, 4}),
                    tensor_of(random_rows<float>(random, 36), {9, 1, 4})});
  attention_forward(shape, {{0, 0, 0, {0, 5}, {0, 9}, -3}, {0, 0, 0, {2, 2}, {0, 9}, 0}}, queries,
                    keys);
  for (int64_t row = 0; row < 5; ++row) {
    for (int64_t head = 0; head < 2; ++head) {
      const float value = lse.const_data_ptr<float>()[row * 2 + head];
      EXPECT_EQ(std::isfinite(value), row >= 3) << row;
      EXPECT_EQ(o.const_data_ptr<float>()[(row * 2 + head) * 4] == 0, row < 3) << row;
    }
  }
}

TEST(AttentionKernel, SameBitsWhateverTheThreads) {
  const AttentionShape shape{.heads = 4, .key_heads = 2, .head_width = 16, .scale = 0.25};
  RandomStream random(11, "threads");
  const int64_t rows = 700;
  const at::Tensor q = tensor_of(random_rows<float>(random, rows * 64), {rows, 4, 16});
  const at::Tensor k = tensor_of(random_rows<float>(random, rows * 32), {rows, 2, 16});
  const at::Tensor v = tensor_of(random_rows<float>(random, rows * 32), {rows, 2, 16});
  const std::vector<AttentionSlice> slices = {{0, 0, 0, {0, 600}, {0, 300}, 0},
                                              {0, 0, 0, {300, 600}, {300, 600}, 0},
                                              {1, 0, 0, {600, 700}, {600, 700}, 0}};
  const auto run = [&](int threads) {
    at::set_num_threads(threads);
    const at::Tensor o = at::zeros({rows, 4, 16}, at::kFloat);
    const at::Tensor lse =
        at::full({rows, 4}, -std::numeric_limits<double>::infinity(), at::kFloat);
    const at::Tensor d_q = at::zeros({rows, 4, 16}, at::kFloat);
    const at::Tensor d_k = at::zeros({rows, 2, 16}, at::kFloat);
    const at::Tensor d_v = at::zeros({rows, 2, 16}, at::kFloat);
    attention_forward(shape, slices, Rows({0, rows}, {q, o, lse}).store(),
                      Rows({0, rows}, {k, v}).store());
    attention_backward(shape, slices, Rows({0, rows}, {q, q, lse, lse, d_q}).store(),
                       Rows({0, rows}, {k, v, d_k, d_v}).store());
    std::vector<double> all;
    for (const at::Tensor& tensor : {o, lse, d_q, d_k, d_v}) {
      const std::vector<double> values = values_of<float>(tensor);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  const std::vector<double> one = run(1);
  const std::vector<double> three = run(3);
  at::set_num_threads(1);
  EXPECT_EQ(one, three);
}

TEST(AttentionKernel, RefusesOtherTypesAndShapes) {
  const AttentionShape shape{.heads = 1, .key_heads = 1, .head_width = 2, .scale = 1};
  const std::vector<AttentionSlice> slices = {{0, 0, 0, {0, 3}, {0, 3}, 0}};
  const auto rows = [](at::ScalarType type, std::vector<int64_t> sizes) {
    return at::zeros(sizes, type);
  };
  const auto launch = [&](at::ScalarType type, int64_t width) {
    RowStore queries;
    queries.add({0, 3}, {rows(type, {3, 1, width}), rows(type, {3, 1, 2}), rows(type, {3, 1})});
    RowStore keys;
    keys.add({0, 3}, {rows(type, {3, 1, 2}), rows(type, {3, 1, 2})});
    attention_forward(shape, slices, queries, keys);
  };
  EXPECT_NO_THROW(launch(at::kFloat, 2));
  EXPECT_THROW(launch(at::kFloat, 4), InternalError);
  EXPECT_THROW(launch(at::kBFloat16, 2), InternalError);
}

}  // namespace
}  // namespace longspan
