#include <cmath>
#include <limits>
#include <map>

#include "base/check.h"
#include "base/narrow.h"
#include "kernels/cpu/block_product.h"
#include "kernels/cpu/blocked_attention.h"
#include "kernels/cpu/blocked_attention_sizes.h"
#include "kernels/cpu/vector_math.h"

namespace longspan {
namespace {

// The softmax in progress of one panel of lanes; o is not normalised: o = sum exp(s - maximum) v.
template <typename Real>
struct Panel {
  Real* q_t;      // [K, lanes], scaled
  Real* o_t;      // [K, lanes]
  Real* maximum;  // [lanes]
  Real* sum;      // [lanes]
};

// A block of keys, as a panel sees it: each lane the first visible[lane] of `rows`, all lanes the
// first `full_rows`.
template <typename Real>
struct VisibleKeys {
  int64_t rows = 0;
  int64_t full_rows = 0;
  Real visible[kPanelLanes<Real>] = {};
};

// From scores [keys, lanes] to exp(scores - maximum), zero where masked. Updates maximum and sum;
// `shrink` gets the factor of what was summed before.
template <typename Real>
void absorb_scores(const VisibleKeys<Real>& keys, const Panel<Real>& panel, Real* scores,
                   Real* shrink) {
  constexpr int64_t kLanes = kPanelLanes<Real>;
  constexpr Real kNone = -std::numeric_limits<Real>::infinity();
  Real largest[kLanes];
  Real sum[kLanes] = {};
  std::copy_n(panel.maximum, kLanes, largest);
  for (int64_t key = 0; key < keys.full_rows; ++key) {
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const Real score = scores[key * kLanes + lane];
      largest[lane] = score > largest[lane] ? score : largest[lane];
    }
  }
  for (int64_t key = keys.full_rows; key < keys.rows; ++key) {
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const Real score =
          static_cast<Real>(key) < keys.visible[lane] ? scores[key * kLanes + lane] : kNone;
      largest[lane] = score > largest[lane] ? score : largest[lane];
    }
  }
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    const Real before = panel.maximum[lane];
    panel.maximum[lane] = largest[lane];
    if (largest[lane] == kNone) largest[lane] = 0;  // no key yet: whatever is finite
    shrink[lane] = vector_exp(before - largest[lane]);
  }
  for (int64_t key = 0; key < keys.full_rows; ++key) {
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      Real& score = scores[key * kLanes + lane];
      score = vector_exp(score - largest[lane]);
      sum[lane] += score;
    }
  }
  for (int64_t key = keys.full_rows; key < keys.rows; ++key) {
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      Real& score = scores[key * kLanes + lane];
      const Real value = vector_exp(score - largest[lane]);
      score = static_cast<Real>(key) < keys.visible[lane] ? value : Real{0};
      sum[lane] += score;
    }
  }
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    panel.sum[lane] = panel.sum[lane] * shrink[lane] + sum[lane];
  }
}

template <typename Real>
void absorb_keys(const AttentionTile& tile, int64_t width, const Lanes<Real>& lanes,
                 const std::vector<Panel<Real>>& panels, const HeadStrip<Real>& all_k,
                 const HeadStrip<Real>& all_v, Real* scratch) {
  constexpr int64_t kLanes = kPanelLanes<Real>;
  const int64_t most_keys = tile.visible_keys(tile.query_rows - 1);
  Real* scores = scratch;
  Real* packed = scratch + kKeyBlockRows * kLanes;
  Real shrink[kLanes];
  for (int64_t first = 0; first < most_keys; first += kKeyBlockRows) {
    const int64_t rows = std::min(kKeyBlockRows, most_keys - first);
    const auto k = packed_rows<Real>({all_k.data + first * all_k.stride, all_k.stride}, rows, width,
                                     lanes.count, packed);
    const auto v = packed_rows<Real>({all_v.data + first * all_v.stride, all_v.stride}, rows, width,
                                     lanes.count, packed + kKeyBlockRows * width);
    for (int64_t idx = 0; idx < lanes.panels; ++idx) {
      VisibleKeys<Real> block;
      block.rows = std::min(kKeyBlockRows, lanes.most_keys(tile, idx) - first);
      if (block.rows <= 0) continue;
      block.full_rows = std::clamp<int64_t>(lanes.fewest_keys(tile, idx) - first, 0, block.rows);
      for (int64_t lane = 0; lane < kLanes && block.full_rows < block.rows; ++lane) {
        block.visible[lane] = static_cast<Real>(
            std::min(kKeyBlockRows, tile.visible_keys(lanes.row(idx * kLanes + lane)) - first));
      }
      const Panel<Real>& panel = panels[static_cast<size_t>(idx)];
      multiply<Start::kZero, Real>({block.rows, kLanes, width}, {k.data, k.stride, 1},
                                   {panel.q_t, kLanes}, {scores, kLanes});
      absorb_scores(block, panel, scores, shrink);
      multiply<Start::kShrink, Real>({width, kLanes, block.rows}, {v.data, 1, v.stride},
                                     {scores, kLanes}, {panel.o_t, kLanes, shrink});
    }
  }
}

// The query heads of one key head, from the cell's first row on.
template <typename Real>
struct HeadRows {
  const Real* q;
  Real* o;
  Real* lse;
  int64_t q_stride;
  int64_t o_stride;
  int64_t lse_stride;
};

// Fills the panels, which are zero, from the cell's rows: what they hold already goes on.
template <typename Real>
void load(const HeadRows<Real>& rows, const AttentionShape& shape, const Lanes<Real>& lanes,
          const std::vector<Panel<Real>>& panels) {
  constexpr int64_t kLanes = kPanelLanes<Real>;
  const Real scale = static_cast<Real>(shape.scale);
  for (int64_t at = 0; at < lanes.count; ++at) {
    const Panel<Real>& panel = panels[static_cast<size_t>(at / kLanes)];
    const int64_t lane = at % kLanes;
    const int64_t row = at / lanes.group;
    const int64_t column = at % lanes.group * shape.head_width;
    const Real* q = rows.q + row * rows.q_stride + column;
    for (int64_t idx = 0; idx < shape.head_width; ++idx) {
      panel.q_t[idx * kLanes + lane] = scale * q[idx];
    }
    panel.maximum[lane] = rows.lse[row * rows.lse_stride + at % lanes.group];
    if (panel.maximum[lane] == -std::numeric_limits<Real>::infinity()) continue;
    panel.sum[lane] = 1;
    const Real* o = rows.o + row * rows.o_stride + column;
    for (int64_t idx = 0; idx < shape.head_width; ++idx) panel.o_t[idx * kLanes + lane] = o[idx];
  }
}

template <typename Real>
void store(const HeadRows<Real>& rows, const AttentionShape& shape, const Lanes<Real>& lanes,
           const std::vector<Panel<Real>>& panels) {
  constexpr int64_t kLanes = kPanelLanes<Real>;
  for (int64_t at = 0; at < lanes.count; ++at) {
    const Panel<Real>& panel = panels[static_cast<size_t>(at / kLanes)];
    const int64_t lane = at % kLanes;
    if (panel.sum[lane] == 0) continue;
    const int64_t row = at / lanes.group;
    const Real share = 1 / panel.sum[lane];
    Real* o = rows.o + row * rows.o_stride + at % lanes.group * shape.head_width;
    for (int64_t idx = 0; idx < shape.head_width; ++idx) {
      o[idx] = panel.o_t[idx * kLanes + lane] * share;
    }
    rows.lse[row * rows.lse_stride + at % lanes.group] =
        panel.maximum[lane] + std::log(panel.sum[lane]);
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
  order_items();
}

// Document by document, head by head: the heads of a short document share its cache lines and
// pages, and the cells of a long one read the same keys again.
template <typename Real>
void BlockedAttentionForward<Real>::order_items() {
  const auto document_of = [&](const Cell& cell) {
    return slices_[static_cast<size_t>(cell.slices.front())].document;
  };
  for (size_t begin = 0; begin < cells_.size();) {
    size_t end = begin + 1;
    while (end < cells_.size() && document_of(cells_[end]) == document_of(cells_[begin])) ++end;
    for (int64_t key_head = 0; key_head < shape_.key_heads; ++key_head) {
      for (size_t idx = begin; idx < end; ++idx) items_.push_back({idx, key_head});
    }
    begin = end;
  }
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
    const auto first = std::lower_bound(cuts.begin(), cuts.end(), rows.begin) - cuts.begin();
    for (auto cut = static_cast<size_t>(first); cuts[cut] < rows.end; ++cut) {
      slices_between[cut].push_back(idx);
    }
  }
  for (size_t cut = 0; cut < slices_between.size(); ++cut) {
    if (slices_between[cut].empty()) continue;
    const int64_t part = cell_rows(shape_, cuts[cut + 1] - cuts[cut]);
    for (int64_t row = cuts[cut]; row < cuts[cut + 1]; row += part) {
      cells_.push_back({source, {row, std::min(row + part, cuts[cut + 1])}, slices_between[cut]});
    }
  }
}

template <typename Real>
void BlockedAttentionForward<Real>::run(int64_t item, std::vector<Real>& scratch) const {
  constexpr int64_t kLanes = kPanelLanes<Real>;
  const auto [cell_idx, key_head] = items_[static_cast<size_t>(item)];
  const Cell& cell = cells_[cell_idx];
  const int64_t width = shape_.head_width;
  const Lanes<Real> lanes(shape_, cell.rows.size());
  const int64_t panel_size = (2 * width + 2) * kLanes;
  scratch.resize(
      static_cast<size_t>(lanes.panels * panel_size + kKeyBlockRows * (kLanes + 2 * width)));
  Real* blocks = scratch.data() + lanes.panels * panel_size;
  std::fill(scratch.data(), blocks, Real{0});
  std::vector<Panel<Real>> panels;
  for (int64_t idx = 0; idx < lanes.panels; ++idx) {
    Real* data = scratch.data() + idx * panel_size;
    panels.push_back(
        {data, data + width * kLanes, data + 2 * width * kLanes, data + (2 * width + 1) * kLanes});
  }
  const ForwardQueries<Real>& queries = queries_[static_cast<size_t>(cell.query_source)];
  const int64_t head = key_head * lanes.group;
  const HeadRows<Real> heads{queries.q + cell.rows.begin * queries.q_stride + head * width,
                             queries.o + cell.rows.begin * shape_.query_row_size() + head * width,
                             queries.lse + cell.rows.begin * shape_.heads + head,
                             queries.q_stride,
                             shape_.query_row_size(),
                             shape_.heads};
  load<Real>(heads, shape_, lanes, panels);
  for (const int32_t idx : cell.slices) {
    const AttentionSlice& slice = slices_[static_cast<size_t>(idx)];
    const ForwardKeys<Real>& keys = keys_[static_cast<size_t>(slice.key_source)];
    const AttentionTile tile{cell.rows.size(), slice.key_rows.size(),
                             slice.diagonal + cell.rows.begin - slice.query_rows.begin};
    absorb_keys<Real>(
        tile, width, lanes, panels,
        {keys.k + slice.key_rows.begin * keys.k_stride + key_head * width, keys.k_stride},
        {keys.v + slice.key_rows.begin * keys.v_stride + key_head * width, keys.v_stride}, blocks);
  }
  store<Real>(heads, shape_, lanes, panels);
}

template class BlockedAttentionForward<float>;
template class BlockedAttentionForward<double>;

}  // namespace longspan
