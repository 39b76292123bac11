#include "sparse_attention/index_plans.h"

#include <deque>
#include <map>
#include <mutex>

#include "planner/attention_planner.h"

namespace longspan {
namespace {

// Micro-batches of a step and of the one that is prepared meanwhile.
constexpr size_t kMostLayouts = 64;

class PlanMemory {
 public:
  PlanMemory(const IndexShape& shape, const IndexCostOptions& options)
      : shape_(shape), options_(options) {}

  std::shared_ptr<const AttentionPlan> plan(const TokenLayout& layout, int chunk) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<const AttentionPlan>& plan = plans_of(layout)[chunk];
    if (!plan) {
      const PlanningCosts costs = index_planning_costs(shape_, options_, layout.num_ranks());
      plan = std::make_shared<const AttentionPlan>(
          plan_attention(layout, chunk, Direction::kForward, costs).plan);
    }
    return plan;
  }

 private:
  struct Layout {
    TokenLayout layout;
    std::map<int, std::shared_ptr<const AttentionPlan>> plans;  // by chunk
  };

  std::map<int, std::shared_ptr<const AttentionPlan>>& plans_of(const TokenLayout& layout) {
    for (Layout& known : layouts_) {
      if (known.layout == layout) return known.plans;
    }
    if (layouts_.size() == kMostLayouts) layouts_.pop_back();
    layouts_.push_front({layout, {}});
    return layouts_.front().plans;
  }

  const IndexShape shape_;
  const IndexCostOptions options_;
  std::mutex mutex_;
  std::deque<Layout> layouts_;  // the latest first
};

}  // namespace

PlanningCosts index_planning_costs(const IndexShape& shape, const IndexCostOptions& options,
                                   int num_ranks) {
  const auto pool_tokens = static_cast<double>(shape.pool_tokens);
  const AttentionSizes pair{.query_heads = shape.heads, .key_width = shape.width, .value_width = 0};
  PlanningCosts costs =
      pair_costs(pair, options.flops_per_s * pool_tokens, options.link_bytes_per_s, num_ranks);
  const auto element_bytes = static_cast<double>(options.element_bytes);
  const double query = static_cast<double>(shape.heads * (shape.width + 1)) * element_bytes;
  const double list = static_cast<double>(shape.top_pools) * (element_bytes + sizeof(int32_t));
  PassCosts& scoring = costs.forward;
  scoring.bytes = {.query_out = query,
                   .key_out = static_cast<double>(shape.width) * element_bytes / pool_tokens,
                   .query_back = list,
                   .query_back_partial = list};
  scoring.query_row_memory_bytes = query + list;
  scoring.key_row_memory_bytes = scoring.bytes.key_out;
  return costs;
}

IndexPlanSource planned_index_scoring(const IndexShape& shape, const IndexCostOptions& options) {
  return [memory = std::make_shared<PlanMemory>(shape, options)](
             const TokenLayout& layout, int chunk) { return memory->plan(layout, chunk); };
}

}  // namespace longspan
