#include "base/check.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/blocked_attention.h"
#include "kernels/cpu/blocked_attention_sizes.h"
#include "kernels/cpu/vector_math.h"

namespace longspan {
namespace {

// From scores and dP to P and dS, row by row.
template <typename Real>
void score_gradients(const AttentionTile& tile, int64_t first_row, const AttentionShape& shape,
                     const Real* lse, const Real* delta, Real* p, Real* d_s) {
  const Real scale = static_cast<Real>(shape.scale);
  for (int64_t row = first_row; row < tile.query_rows; ++row) {
    const int64_t visible = tile.visible_keys(row);
    const Real row_lse = lse[row * shape.heads];
    const Real row_delta = delta[row * shape.heads];
    Real* p_row = p + (row - first_row) * tile.key_rows;
    Real* d_s_row = d_s + (row - first_row) * tile.key_rows;
#pragma omp simd
    for (int64_t key = 0; key < visible; ++key) {
      p_row[key] = vector_exp(p_row[key] - row_lse);
      d_s_row[key] = scale * p_row[key] * (d_s_row[key] - row_delta);
    }
    std::fill(p_row + visible, p_row + tile.key_rows, Real{0});
    std::fill(d_s_row + visible, d_s_row + tile.key_rows, Real{0});
  }
}

// One head of the rows of a tile.
template <typename Real>
struct QueryBlock {
  Block<const Real> q;
  Block<const Real> d_o;
  const Real* lse;    // a row's distance: H
  const Real* delta;  // likewise
  Block<Real> d_q;
};

template <typename Real>
struct KeyBlock {
  Block<const Real> k;
  Block<const Real> v;
  Block<Real> d_k;
  Block<Real> d_v;
};

template <typename Real>
Block<Real> from_row(const Block<Real>& block, int64_t row) {
  return {block.data + row * block.stride, block.stride};
}

template <typename Real>
void backward_tile(const AttentionTile& tile, const AttentionShape& shape,
                   const QueryBlock<Real>& queries, const KeyBlock<Real>& keys,
                   std::vector<Real>& scratch) {
  const int64_t width = shape.head_width;
  const Real scale = static_cast<Real>(shape.scale);
  const int64_t visible = tile.visible_keys(tile.query_rows - 1);
  if (visible == 0) return;
  const int64_t block_rows = key_block_rows(visible);
  scratch.resize(static_cast<size_t>(2 * tile.query_rows * block_rows));
  for (int64_t key = 0; key < visible; key += block_rows) {
    const AttentionTile block{tile.query_rows, std::min(block_rows, visible - key),
                              tile.diagonal - key};
    const int64_t first = std::max<int64_t>(0, -block.diagonal);
    const int64_t rows = block.query_rows - first;
    const Block<Real> p{scratch.data(), block.key_rows};
    const Block<Real> d_s{scratch.data() + rows * block.key_rows, block.key_rows};
    const Block<const Real> const_p{p.data, p.stride};
    const Block<const Real> const_d_s{d_s.data, d_s.stride};
    const auto q = from_row(queries.q, first);
    const auto d_o = from_row(queries.d_o, first);
    const auto k = from_row(keys.k, key);
    const auto v = from_row(keys.v, key);
    multiply_transposed<Real>(rows, block.key_rows, width, scale, q, k, 0, p);
    multiply_transposed<Real>(rows, block.key_rows, width, 1, d_o, v, 0, d_s);
    score_gradients(block, first, shape, queries.lse, queries.delta, p.data, d_s.data);
    transposed_multiply<Real>(block.key_rows, width, rows, 1, const_p, d_o, 1,
                              from_row(keys.d_v, key));
    transposed_multiply<Real>(block.key_rows, width, rows, 1, const_d_s, q, 1,
                              from_row(keys.d_k, key));
    multiply<Real>(rows, width, block.key_rows, 1, const_d_s, k, 1, from_row(queries.d_q, first));
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
  const auto num_documents = static_cast<int64_t>(document_end_.size());
  const auto document = static_cast<size_t>(item % num_documents);
  const size_t begin = document == 0 ? 0 : document_end_[document - 1];
  for (size_t idx = begin; idx < document_end_[document]; ++idx) {
    run_slice(slices_[idx], item / num_documents, scratch);
  }
}

template <typename Real>
void BlockedAttentionBackward<Real>::run_slice(const AttentionSlice& slice, int64_t key_head,
                                               std::vector<Real>& scratch) const {
  if (slice.query_rows.empty() || slice.key_rows.empty()) return;
  const BackwardQueries<Real>& queries = queries_[static_cast<size_t>(slice.query_source)];
  const BackwardKeys<Real>& keys = keys_[static_cast<size_t>(slice.key_source)];
  const int64_t width = shape_.head_width;
  const int64_t group = shape_.heads / shape_.key_heads;
  const int64_t query_rows = query_block_rows(slice.query_rows.size(), slice.key_rows.size());
  const int64_t first_key = slice.key_rows.begin;
  for (int64_t row = 0; row < slice.query_rows.size(); row += query_rows) {
    const AttentionTile tile{std::min(query_rows, slice.query_rows.size() - row),
                             slice.key_rows.size(), slice.diagonal + row};
    for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
      const int64_t query_row = slice.query_rows.begin + row;
      backward_tile<Real>(
          tile, shape_,
          {{queries.q + query_row * queries.q_stride + head * width, queries.q_stride},
           {queries.d_o + query_row * queries.d_o_stride + head * width, queries.d_o_stride},
           queries.lse + query_row * shape_.heads + head,
           queries.delta + query_row * shape_.heads + head,
           {queries.d_q + query_row * shape_.query_row_size() + head * width,
            shape_.query_row_size()}},
          {{keys.k + first_key * keys.k_stride + key_head * width, keys.k_stride},
           {keys.v + first_key * keys.v_stride + key_head * width, keys.v_stride},
           {keys.d_k + first_key * shape_.key_row_size() + key_head * width, shape_.key_row_size()},
           {keys.d_v + first_key * shape_.key_row_size() + key_head * width,
            shape_.key_row_size()}},
          scratch);
    }
  }
}

template class BlockedAttentionBackward<float>;
template class BlockedAttentionBackward<double>;

}  // namespace longspan
