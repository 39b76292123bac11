// Model FLOPs as MFU counts them: what the mathematics needs, no recompute and no padding.
//
//   matrix products   2 per weight and token forward, twice that backward: 6. Of routed experts
//                     only those that a token chooses
//   attention         4 x pairs x heads x head width forward and layer, twice that backward: 12.
//                     Sparse attention: its selected pairs, over latents (absorbed keys and values)
//   linear attention  heads x (10 x 64 x K + 6 x K^2) per token for states of K x K, in chunks of
//                     64 tokens; three times that with backward
//   index             2 x heads x width per query and pool scored, forward only: it is not trained
//
// A pair is a query with a key it may see; a document of s tokens has s (s + 1) / 2. The embedding
// is a look-up and counts nothing; the head is a matrix product, tied or not. Kernel rates use the
// flash convention instead (backward 2.5 x forward); the two must not be mixed.
//
//   ModelWork work;
//   for (const int64_t tokens : lengths) work += document_work(spec, tokens);
//   const double mfu = training_flops(spec, work) / (step_s * peak_flops);
//
// Pure functions; any thread. Counts are doubles: a step can exceed 2^63.
#pragma once

#include <cstdint>

#include "spec/model_spec.h"

namespace longspan {

// Tokens of a chunk of linear attention.
inline constexpr int64_t kLinearChunk = 64;

// Of a set of documents; sums over them.
struct ModelWork {
  int64_t tokens = 0;
  double pairs = 0;           // under the causal mask
  double selected_pairs = 0;  // of one layer of sparse attention
  double scored_pools = 0;    // query with pool, of one index

  ModelWork& operator+=(const ModelWork& other);
};

ModelWork document_work(const ModelSpec& spec, int64_t document_tokens);

// Weights that multiply every token; of routed experts, as many as a token chooses.
int64_t matrix_weights(const ModelSpec& spec);

// Pairs of one document under the causal mask.
int64_t causal_pairs(int64_t document_tokens);

double forward_flops(const ModelSpec& spec, const ModelWork& work);
// Forward and backward.
double training_flops(const ModelSpec& spec, const ModelWork& work);

// Of a model without sparse attention, whose work follows from tokens and pairs.
double forward_flops(const ModelSpec& spec, int64_t tokens, double pairs);
double training_flops(const ModelSpec& spec, int64_t tokens, double pairs);

}  // namespace longspan
