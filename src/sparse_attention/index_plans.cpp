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
      : sizes_{shape.heads, shape.width, shape.pool_tokens, shape.top_pools}, options_(options) {}

  std::shared_ptr<const AttentionPlan> plan(const TokenLayout& layout, int chunk) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<const AttentionPlan>& plan = plans_of(layout)[chunk];
    if (!plan) {
      const PlanningCosts costs = index_planning_costs(sizes_, options_, layout.num_ranks());
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

  const IndexSizes sizes_;
  const IndexCostOptions options_;
  std::mutex mutex_;
  std::deque<Layout> layouts_;  // the latest first
};

}  // namespace

IndexPlanSource planned_index_scoring(const IndexShape& shape, const IndexCostOptions& options) {
  return [memory = std::make_shared<PlanMemory>(shape, options)](
             const TokenLayout& layout, int chunk) { return memory->plan(layout, chunk); };
}

}  // namespace longspan
