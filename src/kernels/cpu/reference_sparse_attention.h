// Sparse attention with its index as plain loops in double, one document at a time: the oracle of
// its kernels and of its exchanges, never optimised.
//
//   const auto pooled = reference::pool_keys(keys, gates, 4, width);
//   const auto selected = reference::select_pools(shape, q, weights, pooled);     // a plain sort
//   const auto result = reference::sparse_attention(shape, q, latents, selected);
//
// Vectors hold row-major matrices. Gradients are those of automatic differentiation by hand, sums
// in the order of the queries. Pure functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/sparse_attention_shape.h"

namespace longspan::reference {

inline std::vector<double> pool_keys(const std::vector<double>& keys,
                                     const std::vector<double>& gates, size_t pool_tokens,
                                     size_t width) {
  const size_t pools = keys.size() / width / pool_tokens;
  std::vector<double> pooled(pools * width);
  for (size_t pool = 0; pool < pools; ++pool) {
    for (size_t c = 0; c < width; ++c) {
      double sum = 0;
      for (size_t slot = 0; slot < pool_tokens; ++slot) {
        const size_t at = (pool * pool_tokens + slot) * width + c;
        sum += std::exp(gates[at]);
        pooled[pool * width + c] += std::exp(gates[at]) * keys[at];
      }
      pooled[pool * width + c] /= sum;
    }
  }
  return pooled;
}

inline double index_score(const IndexShape& shape, const double* q, const double* weights,
                          const double* key) {
  double score = 0;
  for (int64_t head = 0; head < shape.heads; ++head) {
    double product = 0;
    for (int64_t c = 0; c < shape.width; ++c) product += q[head * shape.width + c] * key[c];
    score += weights[head] * std::max(0.0, shape.scale * product);
  }
  return score;
}

// Selected pools of every query of a document, ascending. Queries stand at positions 0, 1, ...
inline std::vector<std::vector<int32_t>> select_pools(const IndexShape& shape,
                                                      const std::vector<double>& q,
                                                      const std::vector<double>& weights,
                                                      const std::vector<double>& pooled) {
  std::vector<std::vector<int32_t>> selected;
  const auto queries = std::ssize(weights) / shape.heads;
  for (int64_t query = 0; query < queries; ++query) {
    std::vector<std::pair<double, int32_t>> ranked;
    for (int64_t pool = 0; pool < shape.visible_pools(query); ++pool) {
      const double score =
          index_score(shape, q.data() + query * shape.heads * shape.width,
                      weights.data() + query * shape.heads, pooled.data() + pool * shape.width);
      ranked.emplace_back(-score, static_cast<int32_t>(pool));
    }
    std::sort(ranked.begin(), ranked.end());
    std::vector<int32_t> best;
    for (const auto& [score, pool] : ranked) {
      if (std::ssize(best) < shape.top_pools) best.push_back(pool);
    }
    std::sort(best.begin(), best.end());
    selected.push_back(std::move(best));
  }
  return selected;
}

struct SparseAttentionResult {
  std::vector<double> o;
  std::vector<double> lse;
  // Only with an output gradient.
  std::vector<double> d_q;
  std::vector<double> d_latents;
};

inline SparseAttentionResult sparse_attention(const SparseAttentionShape& shape,
                                              const std::vector<double>& q,
                                              const std::vector<double>& latents,
                                              const std::vector<std::vector<int32_t>>& selected,
                                              const std::vector<double>& d_o = {}) {
  SparseAttentionResult result;
  const auto heads = static_cast<size_t>(shape.heads);
  const auto width = static_cast<size_t>(shape.width);
  const auto pool_tokens = static_cast<size_t>(shape.pool_tokens);
  result.o.resize(q.size());
  result.lse.resize(selected.size() * heads);
  result.d_q.resize(d_o.size());
  if (!d_o.empty()) result.d_latents.resize(latents.size());
  for (size_t query = 0; query < selected.size(); ++query) {
    std::vector<size_t> keys;
    for (const int32_t pool : selected[query]) {
      for (size_t slot = 0; slot < pool_tokens; ++slot) {
        keys.push_back(static_cast<size_t>(pool) * pool_tokens + slot);
      }
    }
    for (size_t at = (query + 1) / pool_tokens * pool_tokens; at <= query; ++at) keys.push_back(at);
    for (size_t head = 0; head < heads; ++head) {
      const size_t row = (query * heads + head) * width;
      std::vector<double> weights;
      double sum = 0;
      for (const size_t key : keys) {
        double score = 0;
        for (size_t c = 0; c < width; ++c) score += q[row + c] * latents[key * width + c];
        weights.push_back(std::exp(shape.scale * score));
        sum += weights.back();
      }
      result.lse[query * heads + head] = std::log(sum);
      for (size_t idx = 0; idx < keys.size(); ++idx) {
        weights[idx] /= sum;
        for (size_t c = 0; c < width; ++c) {
          result.o[row + c] += weights[idx] * latents[keys[idx] * width + c];
        }
      }
      if (d_o.empty()) continue;
      double delta = 0;
      for (size_t c = 0; c < width; ++c) delta += d_o[row + c] * result.o[row + c];
      for (size_t idx = 0; idx < keys.size(); ++idx) {
        const double* latent = latents.data() + keys[idx] * width;
        double d_weight = 0;
        for (size_t c = 0; c < width; ++c) d_weight += d_o[row + c] * latent[c];
        const double d_score = weights[idx] * (d_weight - delta) * shape.scale;
        for (size_t c = 0; c < width; ++c) {
          result.d_q[row + c] += d_score * latent[c];
          result.d_latents[keys[idx] * width + c] +=
              d_score * q[row + c] + weights[idx] * d_o[row + c];
        }
      }
    }
  }
  return result;
}

}  // namespace longspan::reference
