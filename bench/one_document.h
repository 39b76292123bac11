// A micro-batch of one long document of random tokens, planned: what benchmarks of memory run.
//
//   batches.push_back(one_document(65536, /*chunks=*/4, spec.vocab_size));
//
// Pure function of its arguments.
#pragma once

#include "base/narrow.h"
#include "base/random.h"
#include "data/memory_source.h"
#include "data/micro_batch.h"
#include "train/step_planner.h"

namespace longspan {

inline constexpr uint64_t kBenchSeed = 1;

inline PlannedMicroBatch one_document(int64_t tokens, int chunks, int64_t vocabulary) {
  RandomStream random(kBenchSeed, "bench document");
  DocumentContent content;
  for (int64_t at = 0; at < tokens; ++at) {
    content.tokens.push_back(narrow<int32_t>(random.between(0, vocabulary - 1)));
  }
  const MemorySource source({std::move(content)});
  const PackedMicroBatch packed{.pieces = {{0, {0, tokens}}}};
  return plan_micro_batch(materialize(source, packed, {.vocabulary_size = vocabulary}),
                          {.chunks = chunks});
}

}  // namespace longspan
