// What scoring an index of pooled keys costs the attention planner.
//
// Why the planner of attention: scoring is the same kind of task, (document, query range, key
// range), with work that grows with the square of a document; only what a pair costs and what a row
// weighs differ. Pools stand at their last tokens, so a pair of tokens is 1 / pool_tokens of a pair
// of query and pool. There is no backward: the index is not trained, and a recompute repeats its
// choices.
//
//   const PlanningCosts costs = index_planning_costs(sizes, {.element_bytes = 2}, ranks);
//   plan_attention(layout, chunk, Direction::kForward, costs)
//
// Values; pure; any thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cost/cluster_spec.h"
#include "cost/part_rates.h"
#include "planner/planning_costs.h"

namespace longspan {

struct IndexSizes {
  int64_t heads = 1;
  int64_t width = 1;
  int64_t pool_tokens = 4;
  int64_t top_pools = 1;
};

struct IndexCostOptions {
  int64_t element_bytes = 4;
  // Of scoring on a server, and of its link.
  double flops_per_s = 50e9;
  double link_bytes_per_s = 10e9;
};

// As runs score: with measured rates on a GPU; on CPU only the ratio of scoring and link counts.
inline IndexCostOptions index_cost_options(int64_t element_bytes, bool on_gpu) {
  IndexCostOptions options{.element_bytes = element_bytes};
  if (!on_gpu) return options;
  options.flops_per_s = part_rates("h200")->index_scoring.forward.flops_per_s;
  options.link_bytes_per_s = cluster_preset("h200_50").inside_node.bytes_per_s;
  return options;
}

inline PlanningCosts index_planning_costs(const IndexSizes& index, const IndexCostOptions& options,
                                          int num_ranks) {
  const auto pool_tokens = static_cast<double>(index.pool_tokens);
  const AttentionSizes pair{.query_heads = index.heads, .key_width = index.width, .value_width = 0};
  PlanningCosts costs =
      pair_costs(pair, options.flops_per_s * pool_tokens, options.link_bytes_per_s, num_ranks);
  const auto element_bytes = static_cast<double>(options.element_bytes);
  const double query = static_cast<double>(index.heads * (index.width + 1)) * element_bytes;
  const double score_bytes = std::max(4.0, element_bytes);  // of bfloat16 products in float32
  const double list = static_cast<double>(index.top_pools) * (score_bytes + sizeof(int32_t));
  PassCosts& scoring = costs.forward;
  scoring.bytes = {.query_out = query,
                   .key_out = static_cast<double>(index.width) * element_bytes / pool_tokens,
                   .query_back = list,
                   .query_back_partial = list};
  scoring.query_row_memory_bytes = query + list;
  scoring.key_row_memory_bytes = scoring.bytes.key_out;
  return costs;
}

}  // namespace longspan
