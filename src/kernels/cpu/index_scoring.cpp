#include "kernels/cpu/index_scoring.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "base/error.h"
#include "kernels/cpu/block_product.h"

namespace longspan {
namespace {

constexpr int64_t kTileRows = block_product::kTileRows;
constexpr int64_t kMostQueries = 18;
constexpr int64_t kMostPools = 1024;
constexpr int64_t kAlignment = 64;
constexpr int64_t kCandidateBytes = 16;

int64_t aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

int64_t padded_rows(const IndexShape& shape, int64_t queries) {
  return (queries * shape.heads + kTileRows - 1) / kTileRows * kTileRows;
}

// The parts of the work buffer in order; the first begins at an aligned address.
struct BufferParts {
  BufferParts(const IndexShape& shape, int64_t element_bytes, const IndexBlocks& blocks)
      : queries(aligned(shape.width * blocks.pools * element_bytes)),
        dots(queries + aligned(padded_rows(shape, blocks.queries) * shape.width * element_bytes)),
        scores(dots + aligned(padded_rows(shape, blocks.queries) * blocks.pools * element_bytes)),
        candidates(scores + aligned(blocks.pools * element_bytes)),
        merged(candidates + aligned(blocks.pools * kCandidateBytes)),
        bytes(merged + shape.top_pools * kCandidateBytes + kAlignment) {}

  int64_t queries;  // begins after the transposed keys
  int64_t dots;
  int64_t scores;
  int64_t candidates;
  int64_t merged;
  int64_t bytes;
};

// Whether an entry stands before another one in a list. Empty ones come last.
template <typename Real>
bool before(Real score, int32_t pool, Real other_score, int32_t other_pool) {
  if (pool < 0 || other_pool < 0) return other_pool < 0 && pool >= 0;
  return score > other_score || (score == other_score && pool < other_pool);
}

}  // namespace

IndexBlocks index_blocks(const IndexShape& shape, int64_t element_bytes, int64_t bound_bytes) {
  const int64_t fewest = 2 * kVectorBytes / element_bytes;
  IndexBlocks blocks{kMostQueries, std::max(kMostPools, fewest), 0};
  for (;;) {
    blocks.bytes = BufferParts(shape, element_bytes, blocks).bytes;
    if (blocks.bytes <= bound_bytes) return blocks;
    if (blocks.pools > 8 * fewest) {
      blocks.pools /= 2;
    } else if (blocks.queries > 1) {
      blocks.queries /= 2;
    } else if (blocks.pools > fewest) {
      blocks.pools = std::max(fewest, blocks.pools / 2);
    } else {
      throw UserError(text("index scoring with ", shape.heads, " heads of width ", shape.width,
                           " needs a work buffer of at least ", blocks.bytes,
                           " bytes for each thread, but ", bound_bytes,
                           " are allowed: raise the bound of its work buffer"));
    }
  }
}

template <typename Real>
void clear_top_pools(const IndexShape& shape, int64_t queries, Real* scores, int32_t* pools) {
  std::fill_n(scores, queries * shape.top_pools, -std::numeric_limits<Real>::infinity());
  std::fill_n(pools, queries * shape.top_pools, -1);
}

template <typename Real>
void merge_top_pools(const IndexShape& shape, int64_t queries, const Real* from_scores,
                     const int32_t* from_pools, Real* into_scores, int32_t* into_pools) {
  const int64_t top = shape.top_pools;
  std::vector<Real> scores(static_cast<size_t>(top));
  std::vector<int32_t> pools(static_cast<size_t>(top));
  for (int64_t query = 0; query < queries; ++query) {
    const int64_t first = query * top;
    if (from_pools[first] < 0) continue;
    int64_t from = first;
    int64_t into = first;
    for (size_t idx = 0; idx < scores.size(); ++idx) {
      // Neither index can leave its list: together they advance `top` times.
      const bool take =
          before(from_scores[from], from_pools[from], into_scores[into], into_pools[into]);
      scores[idx] = take ? from_scores[from] : into_scores[into];
      pools[idx] = take ? from_pools[from] : into_pools[into];
      (take ? from : into) += 1;
    }
    std::copy(scores.begin(), scores.end(), into_scores + first);
    std::copy(pools.begin(), pools.end(), into_pools + first);
  }
}

template <typename Real>
IndexScorer<Real>::IndexScorer(const IndexShape& shape, int64_t bound_bytes)
    : shape_(shape),
      blocks_(index_blocks(shape, sizeof(Real), bound_bytes)),
      buffer_(static_cast<size_t>(blocks_.bytes)) {
  static_assert(sizeof(Candidate) <= kCandidateBytes);
  const BufferParts parts(shape, sizeof(Real), blocks_);
  void* start = buffer_.data();
  size_t space = buffer_.size();
  std::align(kAlignment, 1, start, space);
  std::byte* base = static_cast<std::byte*>(start);
  const auto reals = [&](int64_t offset) { return reinterpret_cast<Real*>(base + offset); };
  transposed_ = reals(0);
  queries_ = reals(parts.queries);
  dots_ = reals(parts.dots);
  scores_ = reals(parts.scores);
  candidates_ = reinterpret_cast<Candidate*>(base + parts.candidates);
  merged_ = reinterpret_cast<Candidate*>(base + parts.merged);
}

template <typename Real>
void IndexScorer<Real>::score(const IndexQueries<Real>& queries, const IndexPools<Real>& pools) {
  // Queries before `begin` need not choose.
  const int64_t least_position = (shape_.top_pools + 1) * shape_.pool_tokens - 1;
  const int64_t begin = std::max<int64_t>(0, least_position - queries.first_position);
  for (int64_t first = 0; first < pools.count; first += blocks_.pools) {
    const int64_t count = std::min(blocks_.pools, pools.count - first);
    const IndexPools<Real> block{pools.keys + first * shape_.width, pools.first_pool + first,
                                 count};
    transpose(block.keys, count);
    for (int64_t query = begin; query < queries.count; query += blocks_.queries) {
      score_block(queries, query, std::min(queries.count, query + blocks_.queries), block);
    }
  }
}

// Only whole tiles are multiplied, filled up with zero columns here and with any rows below: other
// tiles may round otherwise, and which pools and queries share a tile depends on the plan.
template <typename Real>
void IndexScorer<Real>::transpose(const Real* keys, int64_t count) {
  for (int64_t channel = 0; channel < shape_.width; ++channel) {
    Real* row = transposed_ + channel * blocks_.pools;
    for (int64_t pool = 0; pool < count; ++pool) row[pool] = keys[pool * shape_.width + channel];
    std::fill(row + count, row + blocks_.pools, Real{0});
  }
}

template <typename Real>
void IndexScorer<Real>::score_block(const IndexQueries<Real>& queries, int64_t begin, int64_t end,
                                    const IndexPools<Real>& pools) {
  const auto visible = [&](int64_t query) {
    const int64_t seen = shape_.visible_pools(queries.first_position + query) - pools.first_pool;
    return std::clamp<int64_t>(seen, 0, pools.count);
  };
  constexpr int64_t kLanes = kPanelLanes<Real>;
  const int64_t columns = (visible(end - 1) + kLanes - 1) / kLanes * kLanes;
  if (columns == 0) return;
  const int64_t query_size = shape_.heads * shape_.width;
  std::copy_n(queries.q + begin * query_size, (end - begin) * query_size, queries_);
  multiply<Start::kZero, Real>({padded_rows(shape_, end - begin), columns, shape_.width},
                               {queries_, shape_.width, 1}, {transposed_, blocks_.pools},
                               {dots_, blocks_.pools});
  for (int64_t query = begin; query < end; ++query) {
    const Real* scores = query_scores(dots_ + (query - begin) * shape_.heads * blocks_.pools,
                                      queries.head_weights + query * shape_.heads, columns);
    enter(pools.first_pool, visible(query), scores, queries.scores + query * shape_.top_pools,
          queries.pools + query * shape_.top_pools);
  }
}

template <typename Real>
const Real* IndexScorer<Real>::query_scores(const Real* dots, const Real* head_weights,
                                            int64_t columns) {
  const Real scale = static_cast<Real>(shape_.scale);
  std::fill_n(scores_, columns, Real{0});
  for (int64_t head = 0; head < shape_.heads; ++head) {
    const Real* row = dots + head * blocks_.pools;
    const Real weight = head_weights[head];
    for (int64_t pool = 0; pool < columns; ++pool) {
      const Real product = scale * row[pool];
      scores_[pool] += weight * (product > 0 ? product : Real{0});
    }
  }
  return scores_;
}

template <typename Real>
void IndexScorer<Real>::enter(int64_t first_pool, int64_t count, const Real* scores,
                              Real* list_scores, int32_t* list_pools) {
  const int64_t top = shape_.top_pools;
  const auto better = [](const Candidate& a, const Candidate& b) {
    return before(a.score, a.pool, b.score, b.pool);
  };
  int64_t num_candidates = 0;
  for (int64_t idx = 0; idx < count; ++idx) {
    // Adding zero makes -0 to +0.
    const Real score =
        std::isnan(scores[idx]) ? -std::numeric_limits<Real>::infinity() : scores[idx] + Real{0};
    const auto pool = static_cast<int32_t>(first_pool + idx);
    if (before(score, pool, list_scores[top - 1], list_pools[top - 1])) {
      candidates_[num_candidates++] = {score, pool};
    }
  }
  if (num_candidates == 0) return;
  if (num_candidates > top) {
    std::nth_element(candidates_, candidates_ + top, candidates_ + num_candidates, better);
    num_candidates = top;
  }
  std::sort(candidates_, candidates_ + num_candidates, better);
  int64_t next = 0;
  int64_t listed = 0;
  for (int64_t idx = 0; idx < top; ++idx) {
    const bool take =
        next < num_candidates && before(candidates_[next].score, candidates_[next].pool,
                                        list_scores[listed], list_pools[listed]);
    merged_[idx] = take ? candidates_[next] : Candidate{list_scores[listed], list_pools[listed]};
    (take ? next : listed) += 1;
  }
  for (int64_t idx = 0; idx < top; ++idx) {
    list_scores[idx] = merged_[idx].score;
    list_pools[idx] = merged_[idx].pool;
  }
}

#define LONGSPAN_INSTANTIATE(Real)                                                              \
  template void clear_top_pools(const IndexShape&, int64_t, Real*, int32_t*);                   \
  template void merge_top_pools(const IndexShape&, int64_t, const Real*, const int32_t*, Real*, \
                                int32_t*);                                                      \
  template class IndexScorer<Real>;
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan
