#include "planner/document_order.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace longspan {
namespace {

struct ChunkRoom {
  int64_t free_tokens = 0;
  double pairs = 0;
  std::vector<size_t> documents;
};

double causal_pairs_before(int64_t position) {
  return static_cast<double>(position) * static_cast<double>(position + 1) / 2;
}

// Lays a document that no chunk can hold over the first chunks with room.
void lay_across(int64_t length, std::vector<ChunkRoom>* rooms) {
  int64_t begin = 0;
  for (ChunkRoom& room : *rooms) {
    const int64_t end = std::min(length, begin + room.free_tokens);
    room.pairs += causal_pairs_before(end) - causal_pairs_before(begin);
    room.free_tokens -= end - begin;
    begin = end;
  }
}

ChunkRoom* least_busy_with_room(int64_t length, std::vector<ChunkRoom>* rooms) {
  ChunkRoom* best = nullptr;
  for (ChunkRoom& room : *rooms) {
    if (room.free_tokens < length) continue;
    if (best == nullptr || room.pairs < best->pairs) best = &room;
  }
  return best;
}

}  // namespace

std::vector<size_t> even_chunk_order(const std::vector<int64_t>& lengths, int chunks) {
  LONGSPAN_CHECK(chunks >= 1, "chunks ", chunks);
  std::vector<size_t> by_length(lengths.size());
  std::iota(by_length.begin(), by_length.end(), size_t{0});
  if (chunks == 1) return by_length;
  std::stable_sort(by_length.begin(), by_length.end(),
                   [&](size_t one, size_t other) { return lengths[one] > lengths[other]; });
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const int64_t chunk_tokens = (tokens + chunks - 1) / chunks;
  std::vector<ChunkRoom> rooms(static_cast<size_t>(chunks), {chunk_tokens, 0, {}});
  std::vector<size_t> order;
  std::vector<size_t> left_over;
  for (const size_t document : by_length) {
    const int64_t length = lengths[document];
    if (length > chunk_tokens) {
      lay_across(length, &rooms);
      order.push_back(document);
      continue;
    }
    ChunkRoom* room = least_busy_with_room(length, &rooms);
    if (room == nullptr) {
      left_over.push_back(document);
      continue;
    }
    room->free_tokens -= length;
    room->pairs += causal_pairs_before(length);
    room->documents.push_back(document);
  }
  for (const ChunkRoom& room : rooms) {
    order.insert(order.end(), room.documents.begin(), room.documents.end());
  }
  order.insert(order.end(), left_over.begin(), left_over.end());
  return order;
}

}  // namespace longspan
