// The one axis: a micro-batch as a line of whole documents, cut over a grid of chunks x ranks.
//
// Why: attention cost grows with the square of a document, everything else with its tokens. Tokens
// are therefore dealt out evenly, document after document, and attention is balanced apart from
// that (planner/). Chunk 0 lies over ranks 0..R-1, then chunk 1 over ranks 0..R-1, and so on:
//
//   documents  |---- 0 (long) --------------------------------|-1-|- 2 -|--- 3 ---|
//   chunk 0    | rank 0 | rank 1 | rank 2 | rank 3 |
//   chunk 1                                        | rank 0 | rank 1 | rank 2 | rank 3 |
//
//   TokenLayout layout = TokenLayout::make({5000, 1, 130}, {.chunks = 2, .shares = {1, 1, 0}});
//   Range piece = layout.piece(1, 0);                   // line positions of chunk 1 on rank 0
//   for (const DocumentPart& part : layout.document_parts(piece))  // the documents inside it
//     use(part.document, part.positions, part.line);
//
// Two coordinate systems: *line* positions count tokens of the micro-batch, *document* positions
// count from a document's start. Borders snap to 128-blocks of the document that they cut, so
// shares are equal within one block; from_borders accepts any border. Pieces may be empty: a rank
// with share 0 (a dedicated attention server) has only empty ones.
//
// Immutable value; any thread may read it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/range.h"

namespace longspan {

// The attention kernels' tile; task cuts and piece borders are multiples of it in document
// positions.
inline constexpr int64_t kBlockTokens = 128;

struct LayoutOptions {
  int chunks = 1;
  // Relative token share of each rank; its size is the number of ranks. At least one is positive.
  std::vector<double> shares = {1.0};
};

// A stretch of one document on the line.
struct DocumentPart {
  int32_t document = 0;
  Range positions;  // document positions
  Range line;       // the same tokens on the line
  bool operator==(const DocumentPart&) const = default;
};

// Where a token lives.
struct Home {
  int chunk = 0;
  int rank = 0;
  bool operator==(const Home&) const = default;
};

class TokenLayout {
 public:
  // `document_lengths`: tokens of each document on the line, each >= 1.
  static TokenLayout make(const std::vector<int64_t>& document_lengths,
                          const LayoutOptions& options);
  // Any borders: piece i = [borders[i], borders[i+1]) with i = chunk * num_ranks + rank;
  // non-decreasing, from 0 to the number of tokens.
  static TokenLayout from_borders(const std::vector<int64_t>& document_lengths, int num_chunks,
                                  int num_ranks, std::vector<int64_t> borders);

  bool operator==(const TokenLayout&) const = default;

  int num_chunks() const { return num_chunks_; }
  int num_ranks() const { return num_ranks_; }
  int64_t num_tokens() const { return document_begin_.back(); }
  int32_t num_documents() const { return static_cast<int32_t>(document_begin_.size()) - 1; }

  // The document's tokens on the line.
  Range document(int32_t document) const {
    if (document < 0 || document >= num_documents()) fail_document(document);
    const auto idx = static_cast<size_t>(document);
    return {document_begin_[idx], document_begin_[idx + 1]};
  }
  int64_t document_tokens(int32_t document_idx) const { return document(document_idx).size(); }
  int32_t document_at(int64_t line_position) const;

  Range piece(int chunk, int rank) const {
    if (chunk < 0 || chunk >= num_chunks_ || rank < 0 || rank >= num_ranks_) {
      fail_piece(chunk, rank);
    }
    const auto idx =
        static_cast<size_t>(chunk) * static_cast<size_t>(num_ranks_) + static_cast<size_t>(rank);
    return {borders_[idx], borders_[idx + 1]};
  }
  Range chunk(int chunk) const;  // all ranks' pieces of a chunk: one stretch of the line
  // The tokens of chunks [0, chunk_end) on this rank, in chunk order.
  std::vector<Range> pieces_before(int chunk_end, int rank) const;
  Home home(int64_t line_position) const;

  // A line range cut at document starts.
  std::vector<DocumentPart> document_parts(const Range& line) const;
  // A line range cut at piece borders: (home, part) in line order, empty parts left out.
  std::vector<std::pair<Home, Range>> split_by_home(const Range& line) const;
  // Document positions to the line.
  Range to_line(int32_t document_idx, const Range& positions) const {
    const Range whole = document(document_idx);
    if (!positions.empty() && !Range({0, whole.size()}).contains(positions)) {
      fail_positions(document_idx, positions);
    }
    return shift(positions, whole.begin);
  }

  // The rows of `piece(chunk, rank)` whose keys and values later chunks from `first_later_chunk` on
  // will need: tokens of documents that continue there. Sorted and disjoint.
  std::vector<Range> carried_rows(int chunk, int rank, int first_later_chunk) const;

 private:
  TokenLayout() = default;

  // Apart, so that what the planner calls for every task stays short.
  [[noreturn]] void fail_document(int32_t document_idx) const;
  [[noreturn]] void fail_piece(int chunk, int rank) const;
  [[noreturn]] void fail_positions(int32_t document_idx, const Range& positions) const;

  int num_chunks_ = 1;
  int num_ranks_ = 1;
  std::vector<int64_t> document_begin_;  // documents + 1
  std::vector<int64_t> borders_;         // chunks * ranks + 1
};

}  // namespace longspan
