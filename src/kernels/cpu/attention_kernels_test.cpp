// The blocked attention kernels against plain loops: any rectangles, diagonals, sources, orders,
// head groups and widths; without torch, so that sanitizers see every access.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/random.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/blocked_attention.h"
#include "kernels/cpu/reference_attention.h"

namespace longspan {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

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
  const std::vector<int64_t> widths = {1, 3, 8, 24, 40, 64, 72};
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

// Rows of an array with or without something between them.
template <typename Real>
struct Rows {
  Rows(RandomStream& random, int64_t rows, int64_t row_size, int64_t gap)
      : stride(row_size + gap),
        with_gaps(static_cast<size_t>(rows * stride - (rows > 0 ? gap : 0)),
                  std::numeric_limits<Real>::quiet_NaN()) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t idx = 0; idx < row_size; ++idx) {
        const auto value = static_cast<Real>(random.normal());
        with_gaps[static_cast<size_t>(row * stride + idx)] = value;
        values.push_back(value);
        wide.push_back(static_cast<double>(value));
      }
    }
  }
  const Real* row(int64_t idx) const { return with_gaps.data() + idx * stride; }

  int64_t stride;
  std::vector<Real> with_gaps;
  std::vector<Real> values;  // contiguous
  std::vector<double> wide;  // contiguous, for the reference
};

template <typename Real>
struct Inputs {
  Inputs(RandomStream& random, const Case& made)
      : gap(random.below(2) == 0 ? 0 : random.between(1, 9)),
        q(random, made.tile.query_rows, made.shape.query_row_size(), gap),
        k(random, made.tile.key_rows, made.shape.key_row_size(), gap),
        v(random, made.tile.key_rows, made.shape.key_row_size(), gap),
        d_o(random, made.tile.query_rows, made.shape.query_row_size(), gap) {}
  int64_t gap;
  Rows<Real> q, k, v, d_o;
};

template <typename Real>
struct Results {
  explicit Results(const Case& made)
      : o(static_cast<size_t>(made.tile.query_rows * made.shape.query_row_size())),
        lse(static_cast<size_t>(made.tile.query_rows * made.shape.heads), static_cast<Real>(kNone)),
        d_q(o.size()),
        d_k(static_cast<size_t>(made.tile.key_rows * made.shape.key_row_size())),
        d_v(d_k.size()) {}
  std::vector<Real> o, lse, d_q, d_k, d_v;
};

Results<double> reference(const Case& made, const std::vector<double>& q,
                          const std::vector<double>& k, const std::vector<double>& v,
                          const std::vector<double>& d_o) {
  Results<double> results(made);
  reference_attention_forward<double>(made.tile, made.shape, q.data(), k.data(), v.data(),
                                      results.o.data(), results.lse.data());
  reference_attention_backward<double>(
      made.tile, made.shape,
      {q.data(), k.data(), v.data(), results.o.data(), results.lse.data(), d_o.data()},
      {results.d_q.data(), results.d_k.data(), results.d_v.data()});
  return results;
}

template <typename Work, typename Real>
void run_all(const Work& work, std::vector<Real>& scratch) {
  for (int64_t item = 0; item < work.num_items(); ++item) work.run(item, scratch);
}

template <typename Real>
Results<Real> blocked(const Case& made, const Inputs<Real>& inputs) {
  const AttentionShape& shape = made.shape;
  Results<Real> results(made);
  std::vector<Real> delta(results.lse.size());
  std::vector<Real> scratch;
  std::vector<ForwardQueries<Real>> queries;
  std::vector<BackwardQueries<Real>> gradient_queries;
  for (const int64_t row : made.query_borders) {
    const int64_t at = row * shape.query_row_size();
    const int64_t sum_at = row * shape.heads;
    queries.push_back(
        {inputs.q.row(row), inputs.q.stride, results.o.data() + at, results.lse.data() + sum_at});
    gradient_queries.push_back({inputs.q.row(row), inputs.d_o.row(row), inputs.q.stride,
                                inputs.d_o.stride, results.lse.data() + sum_at,
                                delta.data() + sum_at, results.d_q.data() + at});
  }
  std::vector<ForwardKeys<Real>> keys;
  std::vector<BackwardKeys<Real>> gradient_keys;
  for (const int64_t row : made.key_borders) {
    const int64_t at = row * shape.key_row_size();
    keys.push_back({inputs.k.row(row), inputs.v.row(row), inputs.k.stride, inputs.v.stride});
    gradient_keys.push_back({inputs.k.row(row), inputs.v.row(row), inputs.k.stride, inputs.v.stride,
                             results.d_k.data() + at, results.d_v.data() + at});
  }
  // Two launches: the second merges into the rows of the first.
  const auto middle = made.slices.begin() + std::ssize(made.slices) / 2;
  run_all(BlockedAttentionForward<Real>(shape, {made.slices.begin(), middle}, queries, keys),
          scratch);
  run_all(BlockedAttentionForward<Real>(shape, {middle, made.slices.end()}, queries, keys),
          scratch);
  attention_delta<Real>(shape, made.tile.query_rows, results.o.data(), inputs.d_o.values.data(),
                        delta.data());
  run_all(BlockedAttentionBackward<Real>(shape, made.slices, gradient_queries, gradient_keys),
          scratch);
  return results;
}

double norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += std::isinf(value) ? 0 : value * value;
  return std::sqrt(sum);
}

// Norm of the difference over that of `expected`, or over `floor` where that is larger; infinities
// must be equal.
template <typename Real>
double error(const std::vector<Real>& got, const std::vector<double>& expected, double floor) {
  std::vector<double> difference;
  for (size_t idx = 0; idx < got.size(); ++idx) {
    const auto value = static_cast<double>(got[idx]);
    if (std::isinf(expected[idx]) && value != expected[idx]) return kNone * -1;
    difference.push_back(value == expected[idx] ? 0 : value - expected[idx]);
  }
  const double size = std::max(norm(expected), floor);
  return size == 0 ? norm(difference) : norm(difference) / size;
}

// Rounding errors of sums are taken to add like random signs: sqrt(K) products of a score, whose
// terms sum to about K * scale in absolute value, and sqrt(N) terms of a weighted sum; 16 for the
// exponential, the logarithm and the division. Backward multiplies two such quantities.
template <typename Real>
double error_bound(const Case& made) {
  if (sizeof(Real) == sizeof(double)) return 1e-12;
  const auto width = static_cast<double>(made.shape.head_width);
  const auto rows = static_cast<double>(std::max(made.tile.key_rows, made.tile.query_rows));
  const double terms = std::sqrt(width) * width * made.shape.scale + std::sqrt(rows) + 16;
  return 2 * terms * static_cast<double>(std::numeric_limits<Real>::epsilon());
}

template <typename Real>
void check_seeds(uint64_t first, uint64_t count) {
  for (uint64_t seed = first; seed < first + count && !testing::Test::HasFailure(); ++seed) {
    RandomStream random(seed, "attention kernels test");
    const Case made = random_case(random);
    SCOPED_TRACE(text("seed ", seed, ", H ", made.shape.heads, ", G ", made.shape.key_heads, ", K ",
                      made.shape.head_width, ", ", made.tile.query_rows, " x ", made.tile.key_rows,
                      ", diagonal ", made.tile.diagonal, ", ", made.slices.size(), " slices"));
    const Inputs<Real> inputs(random, made);
    const Results<Real> got = blocked(made, inputs);
    const Results<double> expected =
        reference(made, inputs.q.wide, inputs.k.wide, inputs.v.wide, inputs.d_o.wide);
    const double bound = error_bound<Real>(made);
    EXPECT_LE(error(got.o, expected.o, 0), bound);
    EXPECT_LE(error(got.lse, expected.lse, 0), bound);
    EXPECT_LE(error(got.d_v, expected.d_v, 0), bound);
    // dQ and dK cancel (P (dP - delta) sums to 0 over a row): of a few keys little is left but
    // rounding, so the error is measured against the parts that cancel, which are about as large as
    // dV times the root of K.
    const double parts = norm(expected.d_v) * std::sqrt(static_cast<double>(made.shape.head_width));
    EXPECT_LE(error(got.d_q, expected.d_q, parts), bound);
    EXPECT_LE(error(got.d_k, expected.d_k, parts), bound);
  }
}

TEST(AttentionKernels, EqualReferenceInDouble) {
  check_seeds<double>(0, 80);
}
TEST(AttentionKernels, EqualReferenceInFloat) {
  check_seeds<float>(1000, 80);
}

TEST(AttentionKernels, NotANumberIsNotHidden) {
  const AttentionShape shape{.heads = 1, .key_heads = 1, .head_width = 2, .scale = 1};
  std::vector<float> q(6, 1.0f);
  q[2] = std::nanf("");
  const std::vector<float> k(6, 1.0f);
  std::vector<float> o(6);
  std::vector<float> lse(3, static_cast<float>(kNone));
  std::vector<float> scratch;
  run_all(BlockedAttentionForward<float>(shape, {{0, 0, 0, {0, 3}, {0, 3}, 0}},
                                         {{q.data(), 2, o.data(), lse.data()}},
                                         {{k.data(), k.data(), 2, 2}}),
          scratch);
  EXPECT_TRUE(std::isfinite(o[0]) && std::isnan(o[2]) && std::isnan(lse[1]) && std::isfinite(o[4]));
}

TEST(AttentionRows, MergedPartsAreTheWhole) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    RandomStream random(seed, "merge test");
    Case made = random_case(random);
    made.tile.key_rows = std::max<int64_t>(2, made.tile.key_rows);
    const Inputs<double> inputs(random, made);
    const int64_t cut = random.between(1, made.tile.key_rows - 1);
    const AttentionTile head{made.tile.query_rows, cut, made.tile.diagonal};
    const AttentionTile tail{made.tile.query_rows, made.tile.key_rows - cut,
                             made.tile.diagonal - cut};
    Results<double> whole(made);
    Results<double> first(made);
    Results<double> second(made);
    const auto key_at = static_cast<size_t>(cut * made.shape.key_row_size());
    const auto forward = [&](const AttentionTile& tile, size_t at, Results<double>* results) {
      reference_attention_forward<double>(tile, made.shape, inputs.q.wide.data(),
                                          inputs.k.wide.data() + at, inputs.v.wide.data() + at,
                                          results->o.data(), results->lse.data());
    };
    forward(made.tile, 0, &whole);
    forward(head, 0, &first);
    forward(tail, key_at, &second);
    merge_attention_rows<double>(made.shape, made.tile.query_rows, first.o.data(), first.lse.data(),
                                 second.o.data(), second.lse.data());
    EXPECT_LE(error(first.o, whole.o, 0), 1e-13) << "seed " << seed;
    EXPECT_LE(error(first.lse, whole.lse, 0), 1e-13) << "seed " << seed;
  }
}

}  // namespace
}  // namespace longspan
