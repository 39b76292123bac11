#include <cmath>
#include <limits>
#include <map>

#include "base/check.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/blocked_attention.h"
#include "kernels/cpu/blocked_attention_sizes.h"
#include "kernels/cpu/vector_math.h"

namespace longspan {
namespace {

template <typename Real>
Real largest(const Real* values, int64_t count, Real start) {
  Real maximum = start;
#pragma omp simd reduction(max : maximum)
  for (int64_t idx = 0; idx < count; ++idx) {
    maximum = values[idx] > maximum ? values[idx] : maximum;
  }
  return maximum;
}

// values = exp(values - maximum); returns their sum.
template <typename Real>
Real exponentials(Real* values, int64_t count, Real maximum) {
  Real sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t idx = 0; idx < count; ++idx) {
    values[idx] = vector_exp(values[idx] - maximum);
    sum += values[idx];
  }
  return sum;
}

// One head of one cell: the softmax in progress. o is kept unnormalised, o = sum exp(s - maximum)
// v.
template <typename Real>
struct RunningSoftmax {
  Real* scores;   // [rows, key block]
  Real* o;        // [rows, K]
  Real* maximum;  // [rows]
  Real* sum;      // [rows]
};

template <typename Real>
void absorb_scores(const AttentionTile& tile, int64_t first_row, int64_t width, int64_t stride,
                   const RunningSoftmax<Real>& state) {
  for (int64_t row = first_row; row < tile.query_rows; ++row) {
    Real* scores = state.scores + (row - first_row) * stride;
    const int64_t visible = tile.visible_keys(row);
    const Real maximum = largest(scores, visible, state.maximum[row]);
    const Real shrink = std::exp(state.maximum[row] - maximum);
    state.sum[row] = state.sum[row] * shrink + exponentials(scores, visible, maximum);
    state.maximum[row] = maximum;
    std::fill(scores + visible, scores + tile.key_rows, Real{0});
    if (shrink == 1) continue;
    Real* o = state.o + row * width;
    for (int64_t column = 0; column < width; ++column) o[column] *= shrink;
  }
}

template <typename Real>
void absorb_keys(const AttentionTile& tile, const AttentionShape& shape, Block<const Real> q,
                 Block<const Real> k, Block<const Real> v, const RunningSoftmax<Real>& state) {
  const int64_t width = shape.head_width;
  const int64_t visible = tile.visible_keys(tile.query_rows - 1);
  if (visible == 0) return;
  const int64_t block_rows = key_block_rows(visible);
  for (int64_t key = 0; key < visible; key += block_rows) {
    const AttentionTile block{tile.query_rows, std::min(block_rows, visible - key),
                              tile.diagonal - key};
    const int64_t first_row = std::max<int64_t>(0, -block.diagonal);
    const int64_t rows = block.query_rows - first_row;
    multiply_transposed<Real>(rows, block.key_rows, width, static_cast<Real>(shape.scale),
                              {q.data + first_row * q.stride, q.stride},
                              {k.data + key * k.stride, k.stride}, 0,
                              {state.scores, block.key_rows});
    absorb_scores(block, first_row, width, block.key_rows, state);
    multiply<Real>(rows, width, block.key_rows, 1, {state.scores, block.key_rows},
                   {v.data + key * v.stride, v.stride}, 1, {state.o + first_row * width, width});
  }
}

}  // namespace

template <typename Real>
BlockedAttentionForward<Real>::BlockedAttentionForward(const AttentionShape& shape,
                                                       std::vector<AttentionSlice> slices,
                                                       std::vector<ForwardQueries<Real>> queries,
                                                       std::vector<ForwardKeys<Real>> keys)
    : shape_(shape),
      slices_(std::move(slices)),
      queries_(std::move(queries)),
      keys_(std::move(keys)) {
  std::map<int32_t, std::vector<int32_t>> by_source;
  for (size_t idx = 0; idx < slices_.size(); ++idx) {
    const AttentionSlice& slice = slices_[idx];
    if (slice.query_rows.empty() || slice.key_rows.empty()) continue;
    by_source[slice.query_source].push_back(narrow<int32_t>(idx));
  }
  for (const auto& [source, members] : by_source) cut_source(source, members);
}

template <typename Real>
void BlockedAttentionForward<Real>::cut_source(int32_t source,
                                               const std::vector<int32_t>& members) {
  std::vector<int64_t> cuts;
  for (const int32_t idx : members) {
    cuts.push_back(slices_[static_cast<size_t>(idx)].query_rows.begin);
    cuts.push_back(slices_[static_cast<size_t>(idx)].query_rows.end);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::vector<std::vector<int32_t>> slices_between(cuts.size() - 1);
  for (const int32_t idx : members) {
    const Range& rows = slices_[static_cast<size_t>(idx)].query_rows;
    auto cut =
        static_cast<size_t>(std::lower_bound(cuts.begin(), cuts.end(), rows.begin) - cuts.begin());
    for (; cuts[cut] < rows.end; ++cut) slices_between[cut].push_back(idx);
  }
  for (size_t cut = 0; cut < slices_between.size(); ++cut) {
    if (slices_between[cut].empty()) continue;
    int64_t keys = 0;
    for (const int32_t idx : slices_between[cut]) {
      keys += slices_[static_cast<size_t>(idx)].key_rows.size();
    }
    const int64_t total = cuts[cut + 1] - cuts[cut];
    const int64_t part = query_block_rows(total, keys);
    for (int64_t row = cuts[cut]; row < cuts[cut + 1]; row += part) {
      cells_.push_back({source, {row, std::min(row + part, cuts[cut + 1])}, slices_between[cut]});
    }
  }
}

template <typename Real>
void BlockedAttentionForward<Real>::run(int64_t item, std::vector<Real>& scratch) const {
  const auto num_cells = static_cast<int64_t>(cells_.size());
  const Cell& cell = cells_[static_cast<size_t>(item % num_cells)];
  const int64_t head = item / num_cells;
  const int64_t width = shape_.head_width;
  const int64_t rows = cell.rows.size();
  scratch.resize(static_cast<size_t>(rows * (kKeyBlockRows + width + 2)));
  RunningSoftmax<Real> state;
  state.scores = scratch.data();
  state.o = state.scores + rows * kKeyBlockRows;
  state.maximum = state.o + rows * width;
  state.sum = state.maximum + rows;

  const ForwardQueries<Real>& queries = queries_[static_cast<size_t>(cell.query_source)];
  Real* o = queries.o + cell.rows.begin * shape_.query_row_size() + head * width;
  Real* lse = queries.lse + cell.rows.begin * shape_.heads + head;
  for (int64_t row = 0; row < rows; ++row) {
    state.maximum[row] = lse[row * shape_.heads];
    state.sum[row] = state.maximum[row] == -std::numeric_limits<Real>::infinity() ? 0 : 1;
    std::copy_n(o + row * shape_.query_row_size(), width, state.o + row * width);
  }
  const Block<const Real> q{queries.q + cell.rows.begin * queries.q_stride + head * width,
                            queries.q_stride};
  for (const int32_t idx : cell.slices) {
    const AttentionSlice& slice = slices_[static_cast<size_t>(idx)];
    const ForwardKeys<Real>& keys = keys_[static_cast<size_t>(slice.key_source)];
    const int64_t column = shape_.key_head(head) * width;
    const AttentionTile tile{rows, slice.key_rows.size(),
                             slice.diagonal + cell.rows.begin - slice.query_rows.begin};
    absorb_keys<Real>(
        tile, shape_, q, {keys.k + slice.key_rows.begin * keys.k_stride + column, keys.k_stride},
        {keys.v + slice.key_rows.begin * keys.v_stride + column, keys.v_stride}, state);
  }
  for (int64_t row = 0; row < rows; ++row) {
    if (state.sum[row] == 0) continue;
    const Real share = 1 / state.sum[row];
    lse[row * shape_.heads] = state.maximum[row] + std::log(state.sum[row]);
    for (int64_t column = 0; column < width; ++column) {
      o[row * shape_.query_row_size() + column] = state.o[row * width + column] * share;
    }
  }
}

template class BlockedAttentionForward<float>;
template class BlockedAttentionForward<double>;

}  // namespace longspan
