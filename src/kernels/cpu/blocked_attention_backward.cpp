#include "base/check.h"
#include "kernels/cpu/block_product.h"
#include "kernels/cpu/blocked_attention.h"
#include "kernels/cpu/blocked_attention_sizes.h"
#include "kernels/cpu/vector_math.h"

namespace longspan {
namespace {

// The queries of a cell that share a key head: each row's group heads, as lanes. Padding lanes are
// zero, so that they add nothing to any sum.
template <typename Real>
struct CellQueries {
  CellQueries(const AttentionShape& shape, int64_t rows, Real* scratch)
      : lanes(shape, rows), width(shape.head_width) {
    const auto next = [&](int64_t size) {
      Real* data = scratch;
      scratch += size;
      return data;
    };
    q = next(lanes.padded * width);
    d_o = next(lanes.padded * width);
    d_q = next(lanes.padded * width);
    q_t = next(lanes.padded * width);
    d_o_t = next(lanes.padded * width);
    lse = next(lanes.padded);
    delta = next(lanes.padded);
    p = next(lanes.padded * kKeyBlockRows);
    d_s = next(lanes.padded * kKeyBlockRows);
    packed_k = next(kKeyBlockRows * width);
    packed_v = next(kKeyBlockRows * width);
  }
  static int64_t scratch_size(const AttentionShape& shape, int64_t rows) {
    return Lanes<Real>(shape, rows).padded * (5 * shape.head_width + 2 + 2 * kKeyBlockRows) +
           2 * kKeyBlockRows * shape.head_width;
  }

  Lanes<Real> lanes;
  int64_t width;
  Real* q;      // [lanes, K], scaled
  Real* d_o;    // [lanes, K]
  Real* d_q;    // [lanes, K], not yet scaled
  Real* q_t;    // [panels, K, panel lanes]
  Real* d_o_t;  // [panels, K, panel lanes]
  Real* lse;
  Real* delta;
  Real* p;         // [key block, lanes]: probabilities
  Real* d_s;       // [key block, lanes]: gradients of the scores
  Real* packed_k;  // [key block, K]
  Real* packed_v;
};

template <typename Real>
struct KeyBlock {
  HeadStrip<Real> k;
  HeadStrip<Real> v;
  Real* d_k;
  Real* d_v;
  int64_t gradient_stride;
};

// Of one panel, from scores and dP to P and dS, zero where masked: lane sees the keys up to
// visible[lane], all lanes the first full_rows.
template <typename Real>
void score_gradients(const CellQueries<Real>& cell, int64_t panel, int64_t full_rows, int64_t rows,
                     const Real* visible) {
  constexpr int64_t kLanes = kPanelLanes<Real>;
  const Real* lse = cell.lse + panel * kLanes;
  const Real* delta = cell.delta + panel * kLanes;
  for (int64_t key = 0; key < full_rows; ++key) {
    Real* p = cell.p + key * cell.lanes.padded + panel * kLanes;
    Real* d_s = cell.d_s + key * cell.lanes.padded + panel * kLanes;
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      p[lane] = vector_exp(p[lane] - lse[lane]);
      d_s[lane] = p[lane] * (d_s[lane] - delta[lane]);
    }
  }
  for (int64_t key = full_rows; key < rows; ++key) {
    Real* p = cell.p + key * cell.lanes.padded + panel * kLanes;
    Real* d_s = cell.d_s + key * cell.lanes.padded + panel * kLanes;
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const Real value = vector_exp(p[lane] - lse[lane]);
      p[lane] = static_cast<Real>(key) < visible[lane] ? value : Real{0};
      d_s[lane] = p[lane] * (d_s[lane] - delta[lane]);
    }
  }
}

// P and dS of one panel and the keys of a block that it sees, and its part of dQ.
template <typename Real>
void run_panel(const AttentionTile& tile, int64_t first_key, int64_t rows, int64_t panel,
               const CellQueries<Real>& cell, const KeyBlock<Real>& keys) {
  constexpr int64_t kLanes = kPanelLanes<Real>;
  const int64_t width = cell.width;
  const int64_t padded = cell.lanes.padded;
  const int64_t of_panel = panel * kLanes;
  multiply<Start::kZero, Real>({rows, kLanes, width}, {keys.k.data, keys.k.stride, 1},
                               {cell.q_t + of_panel * width, kLanes}, {cell.p + of_panel, padded});
  multiply<Start::kZero, Real>({rows, kLanes, width}, {keys.v.data, keys.v.stride, 1},
                               {cell.d_o_t + of_panel * width, kLanes},
                               {cell.d_s + of_panel, padded});
  const int64_t full_rows =
      std::clamp<int64_t>(cell.lanes.fewest_keys(tile, panel) - first_key, 0, rows);
  Real visible[kLanes] = {};
  for (int64_t lane = 0; lane < kLanes && full_rows < rows; ++lane) {
    const int64_t keys_seen = tile.visible_keys(cell.lanes.row(of_panel + lane)) - first_key;
    visible[lane] = static_cast<Real>(std::min(rows, keys_seen));
  }
  score_gradients(cell, panel, full_rows, rows, visible);
  multiply<Start::kKeep, Real>({kLanes, width, rows}, {cell.d_s + of_panel, 1, padded},
                               {keys.k.data, keys.k.stride}, {cell.d_q + of_panel * width, width});
}

// Key by key the panels from the first that sees it on: earlier ones have no P and dS there.
template <typename Real>
void run_key_block(const AttentionTile& tile, int64_t first_key, const CellQueries<Real>& cell,
                   const KeyBlock<Real>& keys) {
  constexpr int64_t kLanes = kPanelLanes<Real>;
  const int64_t width = cell.width;
  const int64_t padded = cell.lanes.padded;
  int64_t done = 0;  // keys that an earlier panel sees: its lanes count for them
  std::vector<std::pair<int64_t, int64_t>> stretches;  // keys past the last one's, first panel
  for (int64_t panel = 0; panel < cell.lanes.panels; ++panel) {
    const int64_t rows = std::min(kKeyBlockRows, cell.lanes.most_keys(tile, panel) - first_key);
    if (rows <= 0) continue;
    run_panel(tile, first_key, rows, panel, cell, keys);
    if (rows > done) stretches.push_back({rows, panel});
    done = std::max(done, rows);
  }
  int64_t key = 0;
  for (const auto& [end, panel] : stretches) {
    const ProductSize size{end - key, width, padded - panel * kLanes};
    const int64_t at = key * padded + panel * kLanes;
    multiply<Start::kKeep, Real>(size, {cell.p + at, padded, 1},
                                 {cell.d_o + panel * kLanes * width, width},
                                 {keys.d_v + key * keys.gradient_stride, keys.gradient_stride});
    multiply<Start::kKeep, Real>(size, {cell.d_s + at, padded, 1},
                                 {cell.q + panel * kLanes * width, width},
                                 {keys.d_k + key * keys.gradient_stride, keys.gradient_stride});
    key = end;
  }
}

// The query heads of one key head, from the cell's first row on.
template <typename Real>
struct HeadRows {
  const Real* q;
  const Real* d_o;
  const Real* lse;
  const Real* delta;
  Real* d_q;
  int64_t q_stride;
  int64_t d_o_stride;
};

// Fills the cell, which is zero.
template <typename Real>
void load(const HeadRows<Real>& rows, const AttentionShape& shape, const CellQueries<Real>& cell) {
  constexpr int64_t kLanes = kPanelLanes<Real>;
  const int64_t width = shape.head_width;
  const Real scale = static_cast<Real>(shape.scale);
  for (int64_t lane = 0; lane < cell.lanes.count; ++lane) {
    const int64_t row = lane / cell.lanes.group;
    const int64_t head = lane % cell.lanes.group;
    const Real* q = rows.q + row * rows.q_stride + head * width;
    const Real* d_o = rows.d_o + row * rows.d_o_stride + head * width;
    const int64_t transposed = lane / kLanes * kLanes * width + lane % kLanes;
    for (int64_t idx = 0; idx < width; ++idx) {
      cell.q[lane * width + idx] = scale * q[idx];
      cell.d_o[lane * width + idx] = d_o[idx];
      cell.q_t[transposed + idx * kLanes] = scale * q[idx];
      cell.d_o_t[transposed + idx * kLanes] = d_o[idx];
    }
    cell.lse[lane] = rows.lse[row * shape.heads + head];
    cell.delta[lane] = rows.delta[row * shape.heads + head];
  }
}

template <typename Real>
void add_query_gradients(const HeadRows<Real>& rows, const AttentionShape& shape,
                         const CellQueries<Real>& cell) {
  const int64_t width = shape.head_width;
  const Real scale = static_cast<Real>(shape.scale);
  for (int64_t lane = 0; lane < cell.lanes.count; ++lane) {
    Real* d_q = rows.d_q + lane / cell.lanes.group * shape.query_row_size() +
                lane % cell.lanes.group * width;
    for (int64_t idx = 0; idx < width; ++idx) d_q[idx] += scale * cell.d_q[lane * width + idx];
  }
}

}  // namespace

template <typename Real>
BlockedAttentionBackward<Real>::BlockedAttentionBackward(const AttentionShape& shape,
                                                         std::vector<AttentionSlice> slices,
                                                         std::vector<BackwardQueries<Real>> queries,
                                                         std::vector<BackwardKeys<Real>> keys)
    : shape_(shape),
      slices_(std::move(slices)),
      queries_(std::move(queries)),
      keys_(std::move(keys)) {
  std::stable_sort(
      slices_.begin(), slices_.end(),
      [](const AttentionSlice& a, const AttentionSlice& b) { return a.document < b.document; });
  for (size_t idx = 0; idx < slices_.size(); ++idx) {
    if (idx + 1 == slices_.size() || slices_[idx + 1].document != slices_[idx].document) {
      document_end_.push_back(idx + 1);
    }
  }
}

template <typename Real>
void BlockedAttentionBackward<Real>::run(int64_t item, std::vector<Real>& scratch) const {
  const auto document = static_cast<size_t>(item / shape_.key_heads);
  const size_t begin = document == 0 ? 0 : document_end_[document - 1];
  for (size_t idx = begin; idx < document_end_[document]; ++idx) {
    run_slice(slices_[idx], item % shape_.key_heads, scratch);
  }
}

template <typename Real>
void BlockedAttentionBackward<Real>::run_slice(const AttentionSlice& slice, int64_t key_head,
                                               std::vector<Real>& scratch) const {
  if (slice.query_rows.empty() || slice.key_rows.empty()) return;
  const BackwardQueries<Real>& queries = queries_[static_cast<size_t>(slice.query_source)];
  const BackwardKeys<Real>& keys = keys_[static_cast<size_t>(slice.key_source)];
  const int64_t width = shape_.head_width;
  const int64_t head = key_head * (shape_.heads / shape_.key_heads);
  const int64_t part = cell_rows(shape_, slice.query_rows.size());
  for (int64_t row = 0; row < slice.query_rows.size(); row += part) {
    const AttentionTile tile{std::min(part, slice.query_rows.size() - row), slice.key_rows.size(),
                             slice.diagonal + row};
    const int64_t most_keys = tile.visible_keys(tile.query_rows - 1);
    if (most_keys == 0) continue;
    const int64_t query_row = slice.query_rows.begin + row;
    const int64_t row_sum_at = query_row * shape_.heads + head;
    const HeadRows<Real> heads{queries.q + query_row * queries.q_stride + head * width,
                               queries.d_o + query_row * queries.d_o_stride + head * width,
                               queries.lse + row_sum_at,
                               queries.delta + row_sum_at,
                               queries.d_q + query_row * shape_.query_row_size() + head * width,
                               queries.q_stride,
                               queries.d_o_stride};
    scratch.resize(static_cast<size_t>(CellQueries<Real>::scratch_size(shape_, tile.query_rows)));
    const CellQueries<Real> cell(shape_, tile.query_rows, scratch.data());
    std::fill(scratch.data(), cell.p, Real{0});
    load(heads, shape_, cell);
    for (int64_t key = 0; key < most_keys; key += kKeyBlockRows) {
      const int64_t key_row = slice.key_rows.begin + key;
      const int64_t gradient_at = key_row * shape_.key_row_size() + key_head * width;
      const int64_t rows = std::min(kKeyBlockRows, most_keys - key);
      const auto k =
          packed_rows<Real>({keys.k + key_row * keys.k_stride + key_head * width, keys.k_stride},
                            rows, width, cell.lanes.count, cell.packed_k);
      const auto v =
          packed_rows<Real>({keys.v + key_row * keys.v_stride + key_head * width, keys.v_stride},
                            rows, width, cell.lanes.count, cell.packed_v);
      run_key_block<Real>(
          tile, key, cell,
          {k, v, keys.d_k + gradient_at, keys.d_v + gradient_at, shape_.key_row_size()});
    }
    add_query_gradients(heads, shape_, cell);
  }
}

template class BlockedAttentionBackward<float>;
template class BlockedAttentionBackward<double>;

}  // namespace longspan
