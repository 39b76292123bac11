#include "spec/flops.h"

namespace longspan {

int64_t matrix_weights(const ModelSpec& spec) {
  const int64_t attention = 2 * spec.hidden_size * (spec.query_width() + spec.kv_width());
  const int64_t feed_forward = 3 * spec.hidden_size * spec.intermediate_size;
  return spec.num_layers * (attention + feed_forward) + spec.hidden_size * spec.vocab_size;
}

int64_t causal_pairs(int64_t document_tokens) {
  return document_tokens * (document_tokens + 1) / 2;
}

double forward_flops(const ModelSpec& spec, int64_t tokens, double pairs) {
  const double matrix = 2.0 * static_cast<double>(matrix_weights(spec));
  const double attention = 4.0 * static_cast<double>(spec.num_layers * spec.query_width());
  return matrix * static_cast<double>(tokens) + attention * pairs;
}

double training_flops(const ModelSpec& spec, int64_t tokens, double pairs) {
  return 3 * forward_flops(spec, tokens, pairs);
}

}  // namespace longspan
