#include "attention/row_store.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <tuple>

#include "base/check.h"

namespace longspan {
namespace {

std::vector<at::Tensor> narrowed(const std::vector<at::Tensor>& tensors, const Range& rows) {
  std::vector<at::Tensor> views;
  views.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    const bool whole = rows.size() == tensor.size(0);
    views.push_back(whole ? tensor : tensor.narrow(0, rows.begin, rows.size()));
  }
  return views;
}

}  // namespace

void RowStore::add(const Range& line, std::vector<at::Tensor> tensors) {
  add(line, std::move(tensors), normalize({line}));
}

void RowStore::add(const Range& line, std::vector<at::Tensor> tensors,
                   const std::vector<Range>& parts) {
  for (const at::Tensor& tensor : tensors) {
    LONGSPAN_CHECK(tensor.size(0) == line.size(), "a tensor of ", tensor.size(0),
                   " rows for line rows ", line);
  }
  if (parts.empty()) return;
  sources_.push_back(std::move(tensors));
  for (const Range& part : parts) {
    LONGSPAN_CHECK(line.contains(part), "rows ", part, " of line rows ", line);
    add_entries(part, num_sources() - 1, part.begin - line.begin);
  }
}

void RowStore::add(const RowStore& other) {
  const int32_t first_source = num_sources();
  sources_.insert(sources_.end(), other.sources_.begin(), other.sources_.end());
  for (const auto& [begin, entry] : other.entries_) {
    add_entries(entry.line, first_source + entry.source, entry.first_row);
  }
}

void RowStore::add_entries(const Range& line, int32_t source, int64_t first_row) {
  auto next = entries_.upper_bound(line.begin);
  int64_t position = line.begin;
  if (next != entries_.begin()) position = std::max(position, std::prev(next)->second.line.end);
  while (position < line.end) {
    const int64_t end = next == entries_.end() ? line.end : std::min(line.end, next->first);
    if (position < end) {
      entries_.emplace_hint(next, position,
                            Entry{{position, end}, source, first_row + position - line.begin});
    }
    if (next == entries_.end()) break;
    position = next->second.line.end;
    ++next;
  }
}

std::vector<Range> RowStore::lines() const {
  std::vector<Range> lines;
  for (const auto& [begin, entry] : entries_) {
    if (!lines.empty() && lines.back().end == begin) {
      lines.back().end = entry.line.end;
    } else {
      lines.push_back(entry.line);
    }
  }
  return lines;
}

std::vector<RowStore::Piece> RowStore::find(const Range& line) const {
  std::vector<Piece> pieces;
  int64_t position = line.begin;
  auto after = entries_.upper_bound(position);
  while (position < line.end) {
    LONGSPAN_CHECK(after != entries_.begin() && std::prev(after)->second.line.contains(position),
                   "line rows ", line, " are wanted, but row ", position, " is not in the store");
    const Entry& entry = std::prev(after)->second;
    const Range part{position, std::min(line.end, entry.line.end)};
    pieces.push_back({entry.source, part, shift(part, entry.first_row - entry.line.begin)});
    position = part.end;
    if (after != entries_.end()) ++after;
  }
  return pieces;
}

std::vector<at::Tensor> RowStore::views(const Piece& piece) const {
  return narrowed(tensors(piece.source), piece.rows);
}

std::vector<at::Tensor> RowStore::rows(const Range& line) const {
  const std::vector<Piece> pieces = find(line);
  LONGSPAN_CHECK(!pieces.empty(), "no rows in ", line, ": their shape is unknown");
  if (pieces.size() == 1) return views(pieces.front());
  std::vector<std::vector<at::Tensor>> parts(tensors(pieces.front().source).size());
  for (const Piece& piece : pieces) {
    const std::vector<at::Tensor> part = views(piece);
    for (size_t idx = 0; idx < part.size(); ++idx) parts[idx].push_back(part[idx]);
  }
  std::vector<at::Tensor> joined;
  for (const std::vector<at::Tensor>& part : parts) joined.push_back(at::cat(part));
  return joined;
}

RowStore join(const RowStore& a, const RowStore& b, const std::vector<Range>& lines) {
  RowStore joined;
  std::map<std::tuple<int32_t, int32_t, int64_t>, int32_t> sources;
  const auto add = [&](const RowStore::Piece& of_a, const RowStore::Piece& of_b) {
    const int64_t row_of_a = of_a.rows.begin + of_b.line.begin - of_a.line.begin;
    const int64_t offset = of_b.rows.begin - row_of_a;  // from a's row to the same row of b
    const Range both = intersect({0, a.tensors(of_a.source).at(0).size(0)},
                                 {-offset, b.tensors(of_b.source).at(0).size(0) - offset});
    const auto [source, is_new] =
        sources.try_emplace({of_a.source, of_b.source, offset}, joined.num_sources());
    if (is_new) {
      std::vector<at::Tensor> tensors = narrowed(a.tensors(of_a.source), both);
      for (at::Tensor& tensor : narrowed(b.tensors(of_b.source), shift(both, offset))) {
        tensors.push_back(std::move(tensor));
      }
      joined.sources_.push_back(std::move(tensors));
    }
    joined.add_entries(of_b.line, source->second, row_of_a - both.begin);
  };
  for (const Range& line : lines) {
    for (const RowStore::Piece& of_a : a.find(line)) {
      for (const RowStore::Piece& of_b : b.find(of_a.line)) add(of_a, of_b);
    }
  }
  return joined;
}

RowAccumulator::RowAccumulator(const std::vector<Range>& ranges,
                               const std::vector<std::vector<int64_t>>& row_shapes,
                               const at::TensorOptions& options) {
  for (const std::vector<int64_t>& row_shape : row_shapes) {
    std::vector<int64_t> sizes = {total_size(ranges)};
    sizes.insert(sizes.end(), row_shape.begin(), row_shape.end());
    tensors_.push_back(at::zeros(sizes, options));
  }
  int64_t first_row = 0;
  for (const Range& range : ranges) {
    store_.add(range, narrowed(tensors_, shift({0, range.size()}, first_row)));
    first_row += range.size();
  }
}

void RowAccumulator::add(const Range& line, const std::vector<at::Tensor>& values) {
  for (const RowStore::Piece& piece : store_.find(line)) {
    std::vector<at::Tensor> sums = store_.views(piece);
    LONGSPAN_CHECK(values.size() == sums.size(), values.size(), " tensors to add to ", sums.size());
    const Range rows = shift(piece.line, -line.begin);
    for (size_t idx = 0; idx < sums.size(); ++idx) {
      sums[idx].add_(values[idx].narrow(0, rows.begin, rows.size()));
    }
  }
}

}  // namespace longspan
