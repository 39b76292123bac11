// Core attention of many slices at once, in blocks: no buffer grows with a document.
//
// Why not torch's flash attention for CPU: it knows one top-left causal square for each call. Here
// a slice is any rectangle under any diagonal, and reads its rows where they lie, so tasks need no
// split into square and rectangle and no copies; backward takes delta instead of O, as it travels;
// and the squares of short documents waste fewer masked pairs (docs/cpu_attention.md has figures).
//
//   BlockedAttentionForward<float> work(shape, slices, queries, keys);
//   for (int64_t item = 0; item < work.num_items(); ++item) work.run(item, scratch);
//
// Forward merges what it computes into o and lse: before the first slice of a row they must be
// o = 0, lse = -infinity, or the result of other keys of that row. Backward adds to d_q, d_k, d_v.
// Slices of one row go in the order given, so results do not depend on who runs which item.
//
// Thread contract: different items may run at the same time, each with scratch of its own. Backward
// runs one item for each (document, key head): slices of different documents must not share rows.
#pragma once

#include <span>
#include <vector>

#include "base/range.h"
#include "kernels/attention_shape.h"

namespace longspan {

// Rows of sources: `query_rows` of queries[query_source] against `key_rows` of keys[key_source].
// Query row query_rows.begin + r sees the first r + diagonal + 1 keys of key_rows.
struct AttentionSlice {
  int32_t document = 0;
  int32_t query_source = 0;
  int32_t key_source = 0;
  Range query_rows;
  Range key_rows;
  int64_t diagonal = 0;
};

// A row's heads are contiguous; *_stride is the distance between rows in elements. Arrays without
// one are contiguous.
template <typename Real>
struct ForwardQueries {
  const Real* q = nullptr;
  int64_t q_stride = 0;
  Real* o = nullptr;
  Real* lse = nullptr;
};

template <typename Real>
struct ForwardKeys {
  const Real* k = nullptr;
  const Real* v = nullptr;
  int64_t k_stride = 0;
  int64_t v_stride = 0;
};

template <typename Real>
struct BackwardQueries {
  const Real* q = nullptr;
  const Real* d_o = nullptr;
  int64_t q_stride = 0;
  int64_t d_o_stride = 0;
  const Real* lse = nullptr;
  const Real* delta = nullptr;
  Real* d_q = nullptr;
};

template <typename Real>
struct BackwardKeys {
  const Real* k = nullptr;
  const Real* v = nullptr;
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  Real* d_k = nullptr;
  Real* d_v = nullptr;
};

template <typename Real>
class BlockedAttentionForward {
 public:
  BlockedAttentionForward(const AttentionShape& shape, std::vector<AttentionSlice> slices,
                          std::vector<ForwardQueries<Real>> queries,
                          std::vector<ForwardKeys<Real>> keys);

  int64_t num_items() const { return static_cast<int64_t>(items_.size()); }
  void run(int64_t item, std::vector<Real>& scratch) const;

 private:
  // Query rows that have the same slices.
  struct Cell {
    int32_t query_source = 0;
    Range rows;
    std::vector<int32_t> slices;
  };
  // One key head of a cell.
  struct Item {
    size_t cell_idx = 0;
    int64_t key_head = 0;
  };
  void cut_source(int32_t source, const std::vector<int32_t>& slices);
  void order_items();

  AttentionShape shape_;
  std::vector<AttentionSlice> slices_;
  std::vector<ForwardQueries<Real>> queries_;
  std::vector<ForwardKeys<Real>> keys_;
  std::vector<Cell> cells_;
  std::vector<Item> items_;
};

template <typename Real>
class BlockedAttentionBackward {
 public:
  BlockedAttentionBackward(const AttentionShape& shape, std::vector<AttentionSlice> slices,
                           std::vector<BackwardQueries<Real>> queries,
                           std::vector<BackwardKeys<Real>> keys);

  int64_t num_items() const {
    return static_cast<int64_t>(document_end_.size()) * shape_.key_heads;
  }
  void run(int64_t item, std::vector<Real>& scratch) const;

 private:
  void run_slice(const AttentionSlice& slice, int64_t key_head, std::vector<Real>& scratch) const;

  AttentionShape shape_;
  std::vector<AttentionSlice> slices_;  // by document, else in the order given
  std::vector<BackwardQueries<Real>> queries_;
  std::vector<BackwardKeys<Real>> keys_;
  std::vector<size_t> document_end_;  // past the last slice of each document in slices_
};

}  // namespace longspan
