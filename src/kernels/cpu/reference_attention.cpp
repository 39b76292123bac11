#include "kernels/cpu/reference_attention.h"

#include <cmath>
#include <limits>
#include <vector>

namespace longspan {
namespace {

template <typename Real>
double dot(const Real* a, const Real* b, int64_t count) {
  double sum = 0;
  for (int64_t idx = 0; idx < count; ++idx) {
    sum += static_cast<double>(a[idx]) * static_cast<double>(b[idx]);
  }
  return sum;
}

}  // namespace

template <typename Real>
void reference_attention_forward(const AttentionTile& tile, const AttentionShape& shape,
                                 const Real* q, const Real* k, const Real* v, Real* o, Real* lse) {
  const int64_t width = shape.head_width;
  std::vector<double> scores(static_cast<size_t>(tile.key_rows));
  for (int64_t row = 0; row < tile.query_rows; ++row) {
    const int64_t visible = tile.visible_keys(row);
    for (int64_t head = 0; head < shape.heads; ++head) {
      const int64_t query_at = row * shape.query_row_size() + head * width;
      const int64_t key_at = shape.key_head(head) * width;
      double maximum = -std::numeric_limits<double>::infinity();
      for (int64_t key = 0; key < visible; ++key) {
        double& score = scores[static_cast<size_t>(key)];
        score = shape.scale * dot(q + query_at, k + key * shape.key_row_size() + key_at, width);
        maximum = std::max(maximum, score);
      }
      double sum = 0;
      std::vector<double> mixed(static_cast<size_t>(width), 0.0);
      for (int64_t key = 0; key < visible; ++key) {
        const double weight = std::exp(scores[static_cast<size_t>(key)] - maximum);
        const Real* value = v + key * shape.key_row_size() + key_at;
        sum += weight;
        for (int64_t column = 0; column < width; ++column) {
          mixed[static_cast<size_t>(column)] += weight * static_cast<double>(value[column]);
        }
      }
      for (int64_t column = 0; column < width; ++column) {
        const double value = visible > 0 ? mixed[static_cast<size_t>(column)] / sum : 0;
        o[query_at + column] = static_cast<Real>(value);
      }
      lse[row * shape.heads + head] =
          static_cast<Real>(visible > 0 ? maximum + std::log(sum) : maximum);
    }
  }
}

template <typename Real>
void reference_attention_backward(const AttentionTile& tile, const AttentionShape& shape,
                                  const ReferenceAttentionInputs<Real>& inputs,
                                  const ReferenceAttentionGradients<Real>& gradients) {
  const int64_t width = shape.head_width;
  const auto query_count = static_cast<size_t>(tile.query_rows * shape.query_row_size());
  const auto key_count = static_cast<size_t>(tile.key_rows * shape.key_row_size());
  std::vector<double> d_q(query_count, 0.0);
  std::vector<double> d_k(key_count, 0.0);
  std::vector<double> d_v(key_count, 0.0);
  for (int64_t row = 0; row < tile.query_rows; ++row) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      const int64_t query_at = row * shape.query_row_size() + head * width;
      const double lse = static_cast<double>(inputs.lse[row * shape.heads + head]);
      const double delta = dot(inputs.d_o + query_at, inputs.o + query_at, width);
      for (int64_t key = 0; key < tile.visible_keys(row); ++key) {
        const int64_t key_at = key * shape.key_row_size() + shape.key_head(head) * width;
        const double score = shape.scale * dot(inputs.q + query_at, inputs.k + key_at, width);
        const double probability = std::exp(score - lse);
        const double d_probability = dot(inputs.d_o + query_at, inputs.v + key_at, width);
        const double d_score = shape.scale * probability * (d_probability - delta);
        for (int64_t column = 0; column < width; ++column) {
          const auto query_idx = static_cast<size_t>(query_at + column);
          const auto key_idx = static_cast<size_t>(key_at + column);
          d_q[query_idx] += d_score * static_cast<double>(inputs.k[key_idx]);
          d_k[key_idx] += d_score * static_cast<double>(inputs.q[query_idx]);
          d_v[key_idx] += probability * static_cast<double>(inputs.d_o[query_idx]);
        }
      }
    }
  }
  for (size_t idx = 0; idx < query_count; ++idx) {
    gradients.d_q[idx] += static_cast<Real>(d_q[idx]);
  }
  for (size_t idx = 0; idx < key_count; ++idx) {
    gradients.d_k[idx] += static_cast<Real>(d_k[idx]);
    gradients.d_v[idx] += static_cast<Real>(d_v[idx]);
  }
}

template void reference_attention_forward<float>(const AttentionTile&, const AttentionShape&,
                                                 const float*, const float*, const float*, float*,
                                                 float*);
template void reference_attention_forward<double>(const AttentionTile&, const AttentionShape&,
                                                  const double*, const double*, const double*,
                                                  double*, double*);
template void reference_attention_backward<float>(const AttentionTile&, const AttentionShape&,
                                                  const ReferenceAttentionInputs<float>&,
                                                  const ReferenceAttentionGradients<float>&);
template void reference_attention_backward<double>(const AttentionTile&, const AttentionShape&,
                                                   const ReferenceAttentionInputs<double>&,
                                                   const ReferenceAttentionGradients<double>&);

}  // namespace longspan
