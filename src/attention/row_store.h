// Rows of the token line, kept where they arrived.
//
// Why: a server's keys may lie in its own pieces of several chunks and in messages from several
// ranks. Attention reads them in place: a store maps line positions to rows of *sources*, each a
// few tensors with one first dimension (K and V, say). Nothing is copied until somebody asks for
// rows that lie in several sources as one tensor.
//
//   RowStore keys;
//   keys.add(layout.piece(0, rank), {k_NGK, v_NGK});
//   for (const RowStore::Piece& piece : keys.find({100, 300}))
//     use(keys.tensors(piece.source)[0].narrow(0, piece.rows.begin, piece.rows.size()));
//
// Copying a store copies references, not rows. Thread contract: a value, one rank's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

#include "base/range.h"

namespace longspan {

class RowStore {
 public:
  // A part of a line range that lies in one source.
  struct Piece {
    int32_t source = 0;
    Range line;
    Range rows;  // of the source's tensors
  };

  // Row i of every tensor belongs to line position line.begin + i. Lines already there keep their
  // first source.
  void add(const Range& line, std::vector<at::Tensor> tensors);
  // Of these rows, those on `parts` of the line alone.
  void add(const Range& line, std::vector<at::Tensor> tensors, const std::vector<Range>& parts);
  void add(const RowStore& other);

  int32_t num_sources() const { return static_cast<int32_t>(sources_.size()); }
  const std::vector<at::Tensor>& tensors(int32_t source) const {
    return sources_[static_cast<size_t>(source)];
  }
  // All lines that have a row here, normalized.
  std::vector<Range> lines() const;
  // The pieces of the range in line order; InternalError naming the first missing line position.
  std::vector<Piece> find(const Range& line) const;
  // The range's rows of every tensor: views where they lie in one source, else joined copies.
  std::vector<at::Tensor> rows(const Range& line) const;
  std::vector<at::Tensor> views(const Piece& piece) const;

 private:
  friend RowStore join(const RowStore& a, const RowStore& b, const std::vector<Range>& lines);

  struct Entry {
    Range line;
    int32_t source = 0;
    int64_t first_row = 0;
  };
  void add_entries(const Range& line, int32_t source, int64_t first_row);

  std::vector<std::vector<at::Tensor>> sources_;
  std::map<int64_t, Entry> entries_;  // by line.begin; disjoint
};

// Those lines of both stores, each source carrying the tensors of `a` and then those of `b`: views.
// A source has all rows that two sources share, those around the lines too.
RowStore join(const RowStore& a, const RowStore& b, const std::vector<Range>& lines);

// Sums over rows of the line, zero at first: dK and dV of a rank's own rows, for example.
//
//   RowAccumulator dkv({{0, 128}, {512, 640}}, {{2, 64}, {2, 64}}, at::kFloat);
//   dkv.add({512, 520}, {dk, dv});
//   std::vector<at::Tensor> sums = dkv.rows({512, 640});      // views
class RowAccumulator {
 public:
  // `ranges` normalized; tensor i is [rows of all ranges, row_shapes[i]...].
  RowAccumulator(const std::vector<Range>& ranges,
                 const std::vector<std::vector<int64_t>>& row_shapes,
                 const at::TensorOptions& options);
  // Sums that live elsewhere, several accumulators' as one: what is added is added there.
  explicit RowAccumulator(RowStore sums) : store_(std::move(sums)) {}

  void add(const Range& line, const std::vector<at::Tensor>& values);
  std::vector<at::Tensor> rows(const Range& line) const { return store_.rows(line); }
  const RowStore& store() const { return store_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  std::vector<at::Tensor> tensors_;
  RowStore store_;
};

}  // namespace longspan
