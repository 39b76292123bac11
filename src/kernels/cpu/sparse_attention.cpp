#include "kernels/cpu/sparse_attention.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/cpu/block_product.h"
#include "kernels/cpu/vector_math.h"

namespace longspan {
namespace {

constexpr int64_t kTileRows = block_product::kTileRows;
constexpr int64_t kKeyBlock = 16 * kTileRows;

int64_t round_up(int64_t count, int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

// Walks rows of ascending positions through their segments.
template <typename Real>
class RowFinder {
 public:
  RowFinder(std::span<const LatentRows<Real>> rows, int64_t width) : rows_(rows), width_(width) {}

  Real* find(int64_t position) {
    if (segment_ >= rows_.size() || !rows_[segment_].positions.contains(position)) {
      const auto after = std::upper_bound(
          rows_.begin(), rows_.end(), position,
          [](int64_t at, const LatentRows<Real>& rows) { return at < rows.positions.begin; });
      LONGSPAN_CHECK(after != rows_.begin() && std::prev(after)->positions.contains(position),
                     "the latent of document position ", position, " is not here");
      segment_ = static_cast<size_t>(std::prev(after) - rows_.begin());
    }
    const LatentRows<Real>& segment = rows_[segment_];
    return segment.rows + (position - segment.positions.begin) * width_;
  }

 private:
  std::span<const LatentRows<Real>> rows_;
  int64_t width_;
  size_t segment_ = 0;
};

}  // namespace

int64_t selected_positions(int64_t pool_tokens, int64_t position, std::span<const int32_t> pools,
                           int32_t* positions) {
  int64_t count = 0;
  for (const int32_t pool : pools) {
    if (pool < 0) break;
    for (int64_t slot = 0; slot < pool_tokens; ++slot) {
      positions[count++] = static_cast<int32_t>(pool * pool_tokens + slot);
    }
  }
  for (int64_t at = (position + 1) / pool_tokens * pool_tokens; at <= position; ++at) {
    positions[count++] = static_cast<int32_t>(at);
  }
  return count;
}

template <typename Real>
SparseAttentionWork<Real>::SparseAttentionWork(const SparseAttentionShape& shape,
                                               int64_t pools_per_query)
    : shape_(shape),
      pools_per_query_(pools_per_query),
      max_keys_(shape.max_keys(pools_per_query)),
      lanes_(round_up(shape.heads, kVectorLanes<Real>)),
      padded_width_(round_up(shape.width, kPanelLanes<Real>)),
      positions_(static_cast<size_t>(max_keys_)),
      q_transposed_(static_cast<size_t>(lanes_ * shape.width)),
      d_o_transposed_(q_transposed_.size()),
      q_padded_(static_cast<size_t>(shape.heads * padded_width_)),
      d_o_padded_(q_padded_.size()),
      gathered_(static_cast<size_t>(kKeyBlock * padded_width_)),
      scores_(static_cast<size_t>(max_keys_ * lanes_)),
      of_heads_{std::vector<Real>(static_cast<size_t>(lanes_)),
                std::vector<Real>(static_cast<size_t>(lanes_))} {}

template <typename Real>
int64_t SparseAttentionWork<Real>::row_values() const {
  return (max_keys_ + kTileRows) * lanes_;
}

template <typename Real>
int64_t SparseAttentionWork<Real>::select(const SparseQueries<Real>& queries, int64_t row) {
  return selected_positions(
      shape_.pool_tokens, queries.first_position + row,
      {queries.pools + row * pools_per_query_, static_cast<size_t>(pools_per_query_)},
      positions_.data());
}

template <typename Real>
void SparseAttentionWork<Real>::transpose(const Real* heads, std::vector<Real>* transposed) const {
  for (int64_t channel = 0; channel < shape_.width; ++channel) {
    Real* row = transposed->data() + channel * lanes_;
    for (int64_t head = 0; head < shape_.heads; ++head) {
      row[head] = heads[head * shape_.width + channel];
    }
  }
}

template <typename Real>
void SparseAttentionWork<Real>::pad(const Real* heads, std::vector<Real>* padded) const {
  for (int64_t head = 0; head < shape_.heads; ++head) {
    std::copy_n(heads + head * shape_.width, shape_.width, padded->data() + head * padded_width_);
  }
}

template <typename Real>
void SparseAttentionWork<Real>::gather(std::span<const LatentRows<const Real>> latents,
                                       Range keys) {
  RowFinder<const Real> finder(latents, shape_.width);
  for (int64_t key = keys.begin; key < keys.end; ++key) {
    std::copy_n(finder.find(positions_[static_cast<size_t>(key)]), shape_.width,
                gathered_.data() + (key - keys.begin) * shape_.width);
  }
}

template <typename Real>
void SparseAttentionWork<Real>::products(Range keys, const std::vector<Real>& transposed,
                                         Real* values) const {
  multiply<Start::kZero, Real>({keys.size(), lanes_, shape_.width},
                               {gathered_.data(), shape_.width, 1}, {transposed.data(), lanes_},
                               {values + keys.begin * lanes_, lanes_});
}

// sums[head, R] of values[key, head] times the gathered keys.
template <typename Real>
void SparseAttentionWork<Real>::weighted_sum(Range keys, const Real* values, bool first,
                                             Real* sums) const {
  const ProductSize size{shape_.heads, shape_.width, keys.size()};
  const LeftFactor<Real> left{values + keys.begin * lanes_, 1, lanes_};
  const RightFactor<Real> right{gathered_.data(), shape_.width};
  if (first) {
    multiply<Start::kZero, Real>(size, left, right, {sums, shape_.width});
  } else {
    multiply<Start::kKeep, Real>(size, left, right, {sums, shape_.width});
  }
}

// Of scores to weights, all heads side by side, and the LSE of each.
template <typename Real>
void SparseAttentionWork<Real>::softmax(int64_t num_keys, Real* lse) {
  const Real scale = static_cast<Real>(shape_.scale);
  Real* scores = scores_.data();
  Real* largest = of_heads_[0].data();
  Real* sums = of_heads_[1].data();
  std::copy_n(scores, lanes_, largest);
  std::fill_n(sums, lanes_, Real{0});
  for (int64_t key = 1; key < num_keys; ++key) {
    for (int64_t lane = 0; lane < lanes_; ++lane) {
      largest[lane] = std::max(largest[lane], scores[key * lanes_ + lane]);
    }
  }
  for (int64_t key = 0; key < num_keys; ++key) {
    Real* row = scores + key * lanes_;
    for (int64_t lane = 0; lane < lanes_; ++lane) {
      row[lane] = vector_exp(scale * (row[lane] - largest[lane]));
      sums[lane] += row[lane];
    }
  }
  for (int64_t key = 0; key < num_keys; ++key) {
    Real* row = scores + key * lanes_;
    for (int64_t lane = 0; lane < lanes_; ++lane) row[lane] /= sums[lane];
  }
  for (int64_t head = 0; head < shape_.heads; ++head) {
    lse[head] = scale * largest[head] + std::log(sums[head]);
  }
}

template <typename Real>
void SparseAttentionWork<Real>::forward(const SparseQueries<Real>& queries, Range rows,
                                        std::span<const LatentRows<const Real>> latents, Real* o,
                                        Real* lse) {
  Real* scores = scores_.data();
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t num_keys = select(queries, row);
    transpose(queries.q + row * shape_.row_size(), &q_transposed_);
    for (int64_t begin = 0; begin < num_keys; begin += kKeyBlock) {
      const Range keys{begin, std::min(num_keys, begin + kKeyBlock)};
      gather(latents, keys);
      products(keys, q_transposed_, scores);
    }
    softmax(num_keys, lse + row * shape_.heads);
    for (int64_t begin = 0; begin < num_keys; begin += kKeyBlock) {
      const Range keys{begin, std::min(num_keys, begin + kKeyBlock)};
      if (num_keys > kKeyBlock) gather(latents, keys);
      weighted_sum(keys, scores, begin == 0, o + row * shape_.row_size());
    }
  }
}

template <typename Real>
void SparseAttentionWork<Real>::query_gradient(const SparseQueries<Real>& queries,
                                               const SparseGradientInputs<Real>& given, int64_t row,
                                               std::span<const LatentRows<const Real>> latents,
                                               const KeyWeights<Real>& of_row, Real* d_q) {
  const Real scale = static_cast<Real>(shape_.scale);
  const int64_t num_keys = select(queries, row);
  const Real* d_o = given.d_o + row * shape_.row_size();
  const Real* o = given.o + row * shape_.row_size();
  transpose(queries.q + row * shape_.row_size(), &q_transposed_);
  transpose(d_o, &d_o_transposed_);
  // By lane; those beyond the heads stay zero.
  Real* lse = of_heads_[0].data();
  Real* delta = of_heads_[1].data();
  std::fill_n(lse, lanes_, Real{0});
  std::fill_n(delta, lanes_, Real{0});
  std::copy_n(given.lse + row * shape_.heads, shape_.heads, lse);
  for (int64_t head = 0; head < shape_.heads; ++head) {
    Real sum = 0;
    for (int64_t channel = 0; channel < shape_.width; ++channel) {
      sum += d_o[head * shape_.width + channel] * o[head * shape_.width + channel];
    }
    delta[head] = sum;
  }
  for (int64_t begin = 0; begin < num_keys; begin += kKeyBlock) {
    const Range keys{begin, std::min(num_keys, begin + kKeyBlock)};
    gather(latents, keys);
    products(keys, q_transposed_, of_row.weights);
    products(keys, d_o_transposed_, of_row.d_scores);
    for (int64_t key = keys.begin; key < keys.end; ++key) {
      Real* weights = of_row.weights + key * lanes_;
      Real* d_scores = of_row.d_scores + key * lanes_;
      for (int64_t lane = 0; lane < lanes_; ++lane) {
        weights[lane] = vector_exp(scale * weights[lane] - lse[lane]);
        d_scores[lane] = weights[lane] * (d_scores[lane] - delta[lane]) * scale;
      }
    }
    weighted_sum(keys, of_row.d_scores, begin == 0, d_q + row * shape_.row_size());
  }
}

template <typename Real>
void SparseAttentionWork<Real>::latent_gradient(const SparseQueries<Real>& queries, const Real* d_o,
                                                Range block, const KeyWeights<Real>& of_block,
                                                Range positions,
                                                std::span<const LatentRows<Real>> d_latents) {
  for (int64_t row = block.begin; row < block.end; ++row) {
    const int64_t num_keys = select(queries, row);
    const auto at = [&](int64_t position) {
      return std::lower_bound(positions_.begin(), positions_.begin() + num_keys, position) -
             positions_.begin();
    };
    const Range mine{at(positions.begin), at(positions.end)};
    if (mine.empty()) continue;
    // Whole tiles alone: other tiles may round otherwise, and which rows share a tile depends on
    // how keys are dealt to calls. Rows of a tile beyond the keys are never read.
    pad(queries.q + row * shape_.row_size(), &q_padded_);
    pad(d_o + row * shape_.row_size(), &d_o_padded_);
    const int64_t values_at = (row - block.begin) * row_values();
    RowFinder<Real> finder(d_latents, shape_.width);
    for (int64_t begin = mine.begin; begin < mine.end; begin += kKeyBlock) {
      const int64_t count = std::min(kKeyBlock, mine.end - begin);
      const ProductSize size{round_up(count, kTileRows), padded_width_, shape_.heads};
      const int64_t first = values_at + begin * lanes_;
      multiply<Start::kZero, Real>(size, {of_block.d_scores + first, lanes_, 1},
                                   {q_padded_.data(), padded_width_},
                                   {gathered_.data(), padded_width_});
      multiply<Start::kKeep, Real>(size, {of_block.weights + first, lanes_, 1},
                                   {d_o_padded_.data(), padded_width_},
                                   {gathered_.data(), padded_width_});
      for (int64_t key = 0; key < count; ++key) {
        Real* sum = finder.find(positions_[static_cast<size_t>(begin + key)]);
        const Real* part = gathered_.data() + key * padded_width_;
        for (int64_t channel = 0; channel < shape_.width; ++channel) sum[channel] += part[channel];
      }
    }
  }
}

template class SparseAttentionWork<float>;
template class SparseAttentionWork<double>;

}  // namespace longspan
