// A model's experts as their exchange knows them.
//
// Why a place of its own: a run checks, before it starts, what the executor builds in every step.
//
//   check_expert_group(expert_group_shape(spec, layout.expert_group, layout.expert_chunk_pairs));
//
// Pure functions; any thread.
#pragma once

#include "experts/expert_dispatch.h"
#include "spec/model_spec.h"

namespace longspan {

inline ExpertGroupShape expert_group_shape(const ModelSpec& spec, int64_t expert_group,
                                           int64_t max_pairs_per_chunk) {
  return {.experts = spec.experts.num_experts,
          .top_k = spec.experts.top_k,
          .ranks = expert_group,
          .max_pairs_per_chunk = max_pairs_per_chunk};
}

}  // namespace longspan
