// What each part of a model's layers asks of a device: FLOPs and bytes for a token, forward and
// backward. The cost functions of the hybrid families' parts; spec/flops.h sums the same counts to
// the model FLOPs of a step.
//
//   ModelWork work;                                  // of the documents at hand
//   for (const PartWork& part : part_work(spec, work, /*value_bytes=*/2))
//     seconds += part.layers * tokens * part.forward.seconds(rates.of(part.kind).forward);
//
// What depends on lengths (scored pools, selected keys, pairs) is the mean over the tokens of
// `work`. Backward counts what the engine does there and MFU does not: linear attention computes
// its chunks again, attention its scores (2.5 times forward). The index has no backward. Bytes are
// those that a part must read and write in device memory when it runs as one pass: activations, for
// products and experts; not weights, which many tokens share. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "spec/flops.h"

namespace longspan {

enum class PartKind {
  kProducts,         // with weights, router and experts left out; the head is among them
  kAttention,        // softmax over all keys
  kLinearAttention,  // KDA, its short convolutions among it
  kIndexScoring,     // queries x pooled keys, and the best pools
  kSparseAttention,  // over the latents that the index selected
  kStreams,          // reading, mixing and writing of residual streams (mHC)
  kRouter,
  kExperts,  // routed ones
};
std::string_view part_name(PartKind kind);

struct PassWork {
  double flops = 0;
  double bytes = 0;
};

struct PartWork {
  PartKind kind = PartKind::kProducts;
  int64_t layers = 0;  // that have the part
  PassWork forward;    // of one token in one layer
  PassWork backward;
};

// The parts that the model has, in the order of a layer. `value_bytes`: of activations.
std::vector<PartWork> part_work(const ModelSpec& spec, const ModelWork& work, int64_t value_bytes);

}  // namespace longspan
