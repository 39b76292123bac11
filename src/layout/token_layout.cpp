#include "layout/token_layout.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace longspan {
namespace {

std::vector<int64_t> document_starts(const std::vector<int64_t>& lengths) {
  LONGSPAN_CHECK(!lengths.empty(), "a micro-batch holds at least one document");
  std::vector<int64_t> begin(lengths.size() + 1, 0);
  for (size_t idx = 0; idx < lengths.size(); ++idx) {
    LONGSPAN_CHECK(lengths[idx] >= 1, "document ", idx, " has ", lengths[idx], " tokens");
    begin[idx + 1] = begin[idx] + lengths[idx];
  }
  return begin;
}

// The index of the interval of `starts` (sorted, size n + 1) that holds `position`. Empty intervals
// never hold anything.
size_t interval_of(const std::vector<int64_t>& starts, int64_t position) {
  LONGSPAN_CHECK(position >= 0 && position < starts.back(), "position ", position, " of ",
                 starts.back());
  const auto after = std::upper_bound(starts.begin(), starts.end(), position);
  return static_cast<size_t>(after - starts.begin()) - 1;
}

// The multiple of kBlockTokens of the surrounding document (its ends count) nearest to `position`.
int64_t snap(const std::vector<int64_t>& document_begin, int64_t position) {
  if (position <= 0 || position >= document_begin.back()) return position;
  const size_t document = interval_of(document_begin, position);
  const int64_t begin = document_begin[document];
  const int64_t end = document_begin[document + 1];
  const int64_t below = begin + (position - begin) / kBlockTokens * kBlockTokens;
  const int64_t above = std::min(below + kBlockTokens, end);
  return position - below <= above - position ? below : above;
}

}  // namespace

TokenLayout TokenLayout::make(const std::vector<int64_t>& document_lengths,
                              const LayoutOptions& options) {
  LONGSPAN_CHECK(options.chunks >= 1, "chunks ", options.chunks);
  const double total_share = std::accumulate(options.shares.begin(), options.shares.end(), 0.0);
  LONGSPAN_CHECK(total_share > 0, "the token shares of all ranks add up to ", total_share);
  const std::vector<int64_t> starts = document_starts(document_lengths);
  const auto tokens = static_cast<double>(starts.back());
  std::vector<int64_t> borders = {0};
  for (int chunk = 0; chunk < options.chunks; ++chunk) {
    double done = chunk;
    for (const double share : options.shares) {
      LONGSPAN_CHECK(share >= 0, "token share ", share);
      done += share / total_share;
      const auto ideal = static_cast<int64_t>(std::llround(tokens * done / options.chunks));
      // A rank without a share keeps its border where it is, or snapping could hand it a block.
      borders.push_back(share > 0 ? std::max(borders.back(), snap(starts, ideal)) : borders.back());
    }
    if (chunk + 1 == options.chunks) {
      // Trailing ranks without a share end where the last one with a share ends: at the line's end.
      for (size_t idx = borders.size() - 1; idx > 0; --idx) {
        borders[idx] = starts.back();
        if (options.shares[(idx - 1) % options.shares.size()] > 0) break;
      }
    }
  }
  return from_borders(document_lengths, options.chunks, static_cast<int>(options.shares.size()),
                      std::move(borders));
}

TokenLayout TokenLayout::from_borders(const std::vector<int64_t>& document_lengths, int num_chunks,
                                      int num_ranks, std::vector<int64_t> borders) {
  TokenLayout layout;
  layout.num_chunks_ = num_chunks;
  layout.num_ranks_ = num_ranks;
  layout.document_begin_ = document_starts(document_lengths);
  layout.borders_ = std::move(borders);
  const auto expected = static_cast<size_t>(num_chunks) * static_cast<size_t>(num_ranks) + 1;
  LONGSPAN_CHECK(layout.borders_.size() == expected, "borders ", layout.borders_.size(),
                 ", expected ", expected);
  LONGSPAN_CHECK(layout.borders_.front() == 0 && layout.borders_.back() == layout.num_tokens(),
                 "borders run from ", layout.borders_.front(), " to ", layout.borders_.back(),
                 " on ", layout.num_tokens(), " tokens");
  LONGSPAN_CHECK(std::is_sorted(layout.borders_.begin(), layout.borders_.end()),
                 "borders must not decrease");
  return layout;
}

void TokenLayout::fail_document(int32_t document_idx) const {
  throw InternalError(text("document ", document_idx, " of ", num_documents()));
}

void TokenLayout::fail_piece(int chunk, int rank) const {
  throw InternalError(text("piece (", chunk, ", ", rank, ") of ", num_chunks_, " x ", num_ranks_));
}

void TokenLayout::fail_positions(int32_t document_idx, const Range& positions) const {
  throw InternalError(text("positions ", positions, " of document ", document_idx, " with ",
                           document_tokens(document_idx), " tokens"));
}

int32_t TokenLayout::document_at(int64_t line_position) const {
  return static_cast<int32_t>(interval_of(document_begin_, line_position));
}

Range TokenLayout::chunk(int chunk) const {
  return {piece(chunk, 0).begin, piece(chunk, num_ranks_ - 1).end};
}

std::vector<Range> TokenLayout::pieces_before(int chunk_end, int rank) const {
  std::vector<Range> pieces;
  for (int chunk_idx = 0; chunk_idx < chunk_end; ++chunk_idx)
    pieces.push_back(piece(chunk_idx, rank));
  return pieces;
}

// Pieces are mostly of like size: the guess of equal ones spares a search.
Home TokenLayout::home(int64_t line_position) const {
  const auto pieces = static_cast<int64_t>(borders_.size()) - 1;
  auto idx = static_cast<size_t>(std::clamp<int64_t>(
      line_position * pieces / std::max<int64_t>(1, num_tokens()), 0, pieces - 1));
  if (line_position < borders_[idx] || line_position >= borders_[idx + 1]) {
    idx = interval_of(borders_, line_position);
  }
  const auto piece_idx = static_cast<int>(idx);
  return {piece_idx / num_ranks_, piece_idx % num_ranks_};
}

std::vector<DocumentPart> TokenLayout::document_parts(const Range& line) const {
  std::vector<DocumentPart> parts;
  if (line.empty()) return parts;
  int32_t document_idx = document_at(line.begin);
  for (int64_t at = line.begin; at < line.end; ++document_idx) {
    const Range whole = document(document_idx);
    const Range part{at, std::min(line.end, whole.end)};
    parts.push_back({document_idx, shift(part, -whole.begin), part});
    at = part.end;
  }
  return parts;
}

std::vector<std::pair<Home, Range>> TokenLayout::split_by_home(const Range& line) const {
  std::vector<std::pair<Home, Range>> parts;
  for (int64_t at = line.begin; at < line.end;) {
    const Home owner = home(at);
    const Range part{at, std::min(line.end, piece(owner.chunk, owner.rank).end)};
    parts.emplace_back(owner, part);
    at = part.end;
  }
  return parts;
}

std::vector<Range> TokenLayout::carried_rows(int chunk_idx, int rank, int first_later_chunk) const {
  std::vector<Range> rows;
  if (first_later_chunk >= num_chunks_) return rows;
  const int64_t later = chunk(first_later_chunk).begin;
  for (const DocumentPart& part : document_parts(piece(chunk_idx, rank))) {
    if (document(part.document).end > later) rows.push_back(part.line);
  }
  return normalize(std::move(rows));
}

}  // namespace longspan
