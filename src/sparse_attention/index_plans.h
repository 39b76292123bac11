// Plans of index scoring: who scores which queries against which pools.
//
// The planner of attention makes them, with the costs of planner/index_costs.h. Pools stand at
// their last tokens (pool_axis.h), so a plan over the line is used as it is. A plan is made once
// for a layout and chunk, and shared by all layers and ranks of a process.
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
#include "planner/index_costs.h"

namespace longspan {

using IndexPlanSource =
    std::function<std::shared_ptr<const AttentionPlan>(const TokenLayout& layout, int chunk)>;

// Plans with these costs; remembers those of the last layouts.
IndexPlanSource planned_index_scoring(const IndexShape& shape, const IndexCostOptions& options);

}  // namespace longspan
