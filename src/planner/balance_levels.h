// How far each server is above or below the level at which all would be equally busy.
//
//   BalanceLevels levels(draft, epsilon);
//   levels.set(slack);                       // servers shall end at (1 + slack) times the level
//   if (levels.gives(rank)) give(-levels.deficit_s(rank));
//
// Follows the loads of the draft; targets are those of the last set(). One thread.
#pragma once

#include <algorithm>
#include <vector>

#include "planner/plan_prediction.h"
#include "planner/tile_draft.h"

namespace longspan {

class BalanceLevels {
 public:
  // Servers up to (1 + epsilon) times the level need not give.
  BalanceLevels(const TileDraft& draft, double epsilon)
      : draft_(draft), epsilon_(epsilon), target_s_(static_cast<size_t>(draft.num_ranks())) {}

  void set(double slack) {
    const PlanningCosts& costs = draft_.costs();
    const double level = water_level_s(draft_.total_s(), costs.speed, costs.base_s);
    for (int rank = 0; rank < draft_.num_ranks(); ++rank) {
      const auto idx = static_cast<size_t>(rank);
      target_s_[idx] = (1 + slack) * costs.speed[idx] * std::max(0.0, level - base_s(rank));
    }
    tolerance_ = epsilon_ - slack;
  }

  double target_s(int rank) const { return target_s_[static_cast<size_t>(rank)]; }
  // Negative above the target.
  double deficit_s(int rank) const { return target_s(rank) - draft_.load_s(rank); }
  bool gives(int rank) const {
    return draft_.is_server(rank) && -deficit_s(rank) > tolerance_ * target_s(rank);
  }
  double base_s(int rank) const {
    const std::vector<double>& base = draft_.costs().base_s;
    return base.empty() ? 0 : base[static_cast<size_t>(rank)];
  }

 private:
  const TileDraft& draft_;
  const double epsilon_;
  double tolerance_ = 0;
  std::vector<double> target_s_;
};

}  // namespace longspan
