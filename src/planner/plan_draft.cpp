#include "planner/plan_draft.h"

#include <numeric>
#include <utility>

#include "cost/charged_pairs.h"

namespace longspan {

int64_t Shard::charged_pairs_from(int64_t cut) const {
  return longspan::charged_pairs({cut, queries.end}, {0, queries.end});
}

PlanDraft::PlanDraft(const TokenLayout& layout, int chunk, std::vector<double> speed)
    : layout_(layout),
      chunk_(chunk),
      speed_(std::move(speed)),
      shards_(speed_.size()),
      load_(speed_.size()),
      total_speed_(std::accumulate(speed_.begin(), speed_.end(), 0.0)) {
  const std::vector<DocumentPart> documents = layout.document_parts(layout.chunk(chunk));
  first_document_ = documents.empty() ? 0 : documents.front().document;
  key_reach_.assign(speed_.size(), std::vector<int64_t>(documents.size(), 0));
  for (size_t rank = 0; rank < speed_.size(); ++rank) {
    const Range piece = layout.piece(chunk, static_cast<int>(rank));
    for (const DocumentPart& part : layout.document_parts(piece)) {
      add(rank, {part.document, part.positions, rank});
    }
  }
}

int64_t& PlanDraft::key_reach(size_t server, int32_t document) {
  return key_reach_[server][static_cast<size_t>(document - first_document_)];
}

int64_t PlanDraft::new_key_rows(const Shard& shard, size_t server) const {
  const int64_t reach = key_reach_[server][static_cast<size_t>(shard.document - first_document_)];
  if (reach >= shard.queries.end) return 0;
  const Range needed = layout_.to_line(shard.document, {reach, shard.queries.end});
  int64_t rows = needed.size();
  for (int chunk = 0; chunk <= chunk_; ++chunk) {
    rows -= intersect(needed, layout_.piece(chunk, static_cast<int>(server))).size();
  }
  return rows;
}

void PlanDraft::add_load(size_t server, int64_t charged_pairs) {
  load_[server] += charged_pairs;
  total_load_ += charged_pairs;
}

void PlanDraft::add(size_t server, const Shard& shard) {
  shards_[server].push_back(shard);
  add_load(server, shard.charged_pairs());
  int64_t& reach = key_reach(server, shard.document);
  reach = std::max(reach, shard.queries.end);
}

// After shards have left: the keys that those still there need.
void PlanDraft::forget_keys(size_t server, int32_t document) {
  int64_t& reach = key_reach(server, document);
  reach = 0;
  for (const Shard& shard : shards_[server]) {
    if (shard.document == document) reach = std::max(reach, shard.queries.end);
  }
}

void PlanDraft::move(const Move& move) {
  std::vector<Shard>& from = shards_[move.source];
  Shard moved = from[move.shard];
  const Range kept{moved.queries.begin, move.cut};
  add_load(move.source, -moved.charged_pairs());
  moved.queries.begin = move.cut;
  if (kept.empty()) {
    from.erase(from.begin() + static_cast<int64_t>(move.shard));
  } else {
    from[move.shard].queries = kept;
    add_load(move.source, from[move.shard].charged_pairs());
  }
  if (speed_[move.source] > 0) forget_keys(move.source, moved.document);
  add(move.destination, moved);
}

}  // namespace longspan
