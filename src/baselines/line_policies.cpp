#include "baselines/line_policies.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace longspan {
namespace {

// The rank computes, and is the home of, this stretch of the line.
void give(const TokenLayout& layout, const Range& line, int rank, Baseline* baseline) {
  if (line.empty()) return;
  baseline->homes.push_back({line, rank});
  for (const DocumentPart& part : layout.document_parts(line)) add_task(part, rank, baseline);
}

// Slice `idx` of the line cut into `count` slices of equal tokens.
Range slice(int64_t tokens, int64_t idx, int64_t count) {
  return {tokens * idx / count, tokens * (idx + 1) / count};
}

std::vector<Range> stretches(int64_t tokens, int64_t size) {
  std::vector<Range> list;
  for (int64_t at = 0; at < tokens; at += size) list.push_back({at, std::min(at + size, tokens)});
  return list;
}

int64_t pairs_of(const TokenLayout& layout, const Range& line) {
  int64_t pairs = 0;
  for (const DocumentPart& part : layout.document_parts(line)) {
    pairs += visible_pairs(part.positions, {0, part.positions.end});
  }
  return pairs;
}

// Gives each stretch to its rank, in line order, so that neighbours on one rank are one task.
Baseline finish(const BaselineInput& input, BaselineExchange exchange,
                const std::vector<std::pair<Range, int>>& stretches_by_rank) {
  Baseline baseline = begin_baseline(input, exchange);
  baseline.ranks_per_group = input.layout.num_ranks();
  for (const auto& [line, rank] : stretches_by_rank) give(input.layout, line, rank, &baseline);
  finish_baseline(input.layout, &baseline);
  return baseline;
}

// Indices of `weight` by falling weight; equal ones in line order.
std::vector<size_t> heaviest_first(const std::vector<int64_t>& weight) {
  std::vector<size_t> order(weight.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return weight[a] > weight[b]; });
  return order;
}

}  // namespace

Baseline stay_home(const BaselineInput& input) {
  std::vector<std::pair<Range, int>> given;
  for (int rank = 0; rank < input.layout.num_ranks(); ++rank) {
    given.emplace_back(input.layout.piece(0, rank), rank);
  }
  return finish(input, BaselineExchange::kNeeded, given);
}

Baseline data_parallel(const BaselineInput& input, const std::vector<int64_t>& pack_borders) {
  const auto packs = static_cast<int>(pack_borders.size()) - 1;
  LONGSPAN_CHECK(packs == input.layout.num_ranks(), packs, " packs for ", input.layout.num_ranks(),
                 " ranks");
  std::vector<std::pair<Range, int>> given;
  for (int rank = 0; rank < packs; ++rank) {
    const auto idx = static_cast<size_t>(rank);
    given.emplace_back(Range{pack_borders[idx], pack_borders[idx + 1]}, rank);
  }
  return finish(input, BaselineExchange::kNeeded, given);
}

Baseline contiguous(const BaselineInput& input) {
  const int ranks = input.layout.num_ranks();
  std::vector<std::pair<Range, int>> given;
  for (int rank = 0; rank < ranks; ++rank) {
    given.emplace_back(slice(input.layout.num_tokens(), rank, ranks), rank);
  }
  return finish(input, BaselineExchange::kGather, given);
}

Baseline zigzag(const BaselineInput& input) {
  const int ranks = input.layout.num_ranks();
  std::vector<std::pair<Range, int>> given;
  for (int idx = 0; idx < 2 * ranks; ++idx) {
    given.emplace_back(slice(input.layout.num_tokens(), idx, 2 * ranks),
                       std::min(idx, 2 * ranks - 1 - idx));
  }
  return finish(input, BaselineExchange::kGather, given);
}

Baseline sorted_blocks(const BaselineInput& input) {
  const TokenLayout& layout = input.layout;
  const int ranks = layout.num_ranks();
  const std::vector<Range> blocks = stretches(layout.num_tokens(), kBlockTokens);
  // Key blocks from the one in which the block's first document begins up to its own.
  std::vector<int64_t> key_blocks;
  for (size_t idx = 0; idx < blocks.size(); ++idx) {
    const Range document = layout.document(layout.document_at(blocks[idx].begin));
    key_blocks.push_back(static_cast<int64_t>(idx) - document.begin / kBlockTokens + 1);
  }
  std::vector<std::pair<Range, int>> given(blocks.size());
  int64_t dealt = 0;
  for (const size_t idx : heaviest_first(key_blocks)) {
    const auto place = static_cast<int>(dealt % ranks);
    const bool backwards = dealt / ranks % 2 == 1;
    given[idx] = {blocks[idx], backwards ? ranks - 1 - place : place};
    ++dealt;
  }
  return finish(input, BaselineExchange::kGather, given);
}

Baseline chunk_heap(const BaselineInput& input, int64_t chunk_tokens) {
  const TokenLayout& layout = input.layout;
  const int ranks = layout.num_ranks();
  const std::vector<Range> chunks = stretches(layout.num_tokens(), chunk_tokens);
  std::vector<int64_t> pairs;
  for (const Range& chunk : chunks) pairs.push_back(pairs_of(layout, chunk));
  const size_t most = (chunks.size() + static_cast<size_t>(ranks) - 1) / static_cast<size_t>(ranks);
  using Entry = std::pair<int64_t, int>;  // (load, rank): the least loaded first
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heap;
  for (int rank = 0; rank < ranks; ++rank) heap.emplace(0, rank);
  std::vector<size_t> count(static_cast<size_t>(ranks), 0);
  std::vector<std::pair<Range, int>> given(chunks.size());
  for (const size_t idx : heaviest_first(pairs)) {
    const auto [load, rank] = heap.top();
    heap.pop();
    given[idx] = {chunks[idx], rank};
    if (++count[static_cast<size_t>(rank)] < most) heap.emplace(load + pairs[idx], rank);
  }
  return finish(input, BaselineExchange::kNeeded, given);
}

}  // namespace longspan
