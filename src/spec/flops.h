// Model FLOPs as MFU counts them: what the mathematics needs, no recompute and no padding.
//
//   matrix products   2 per weight and token forward, twice that backward: 6
//   attention         4 x pairs x heads x head width forward and layer, twice that backward: 12
//
// A pair is a query with a key it may see; a document of s tokens has s (s + 1) / 2. The embedding
// is a look-up and counts nothing; the head is a matrix product, tied or not. Kernel rates use the
// flash convention instead (backward 2.5 x forward); the two must not be mixed.
//
//   const double mfu = training_flops(spec, step_tokens, step_pairs) / (step_s * peak_flops);
//
// Pure functions; any thread. Counts are doubles: a step can exceed 2^63.
#pragma once

#include <cstdint>

#include "spec/model_spec.h"

namespace longspan {

// Weights that multiply every token.
int64_t matrix_weights(const ModelSpec& spec);

// Pairs of one document under the causal mask.
int64_t causal_pairs(int64_t document_tokens);

double forward_flops(const ModelSpec& spec, int64_t tokens, double pairs);
// Forward and backward.
double training_flops(const ModelSpec& spec, int64_t tokens, double pairs);

}  // namespace longspan
