// Plans of index scoring: who scores which queries against which pools.
//
// Why the planner of attention: scoring is the same kind of task, (document, query range, key
// range), with work that grows with the square of a document; only what a pair costs and what a row
// weighs differ. Pools stand at their last tokens (pool_axis.h), so a plan over the line is used as
// it is. A plan is made once for a layout and chunk, and shared by all layers and ranks of a
// process.
//
//   IndexPlanSource plans = planned_index_scoring(shape, {.element_bytes = 4});
//   std::shared_ptr<const AttentionPlan> plan = plans(layout, chunk);
//
// Every rank must get the same plan. Thread contract: a source may be called by all ranks at once.
#pragma once

#include <functional>
#include <memory>

#include "kernels/sparse_attention_shape.h"
#include "planner/attention_plan.h"
#include "planner/planning_costs.h"

namespace longspan {

using IndexPlanSource =
    std::function<std::shared_ptr<const AttentionPlan>(const TokenLayout& layout, int chunk)>;

struct IndexCostOptions {
  int64_t element_bytes = 4;
  // Of scoring on a server, and of its link.
  double flops_per_s = 50e9;
  double link_bytes_per_s = 10e9;
};

// What scoring costs the planner: a pair of tokens is 1 / pool_tokens of a pair of query and pool.
PlanningCosts index_planning_costs(const IndexShape& shape, const IndexCostOptions& options,
                                   int num_ranks);

// Plans with these costs; remembers those of the last layouts.
IndexPlanSource planned_index_scoring(const IndexShape& shape, const IndexCostOptions& options);

}  // namespace longspan
