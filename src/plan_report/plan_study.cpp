#include "plan_report/plan_study.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "baselines/registry.h"
#include "planner/dispatch_layout.h"
#include "planner/planner_scratch.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct FigureLists {
  std::vector<PlanFigures> forward;
  std::vector<PlanFigures> backward;

  std::vector<PlanFigures>& of(Direction direction) {
    return direction == Direction::kForward ? forward : backward;
  }
  BothDirections mean() const {
    return {mean_figures(forward), backward.empty() ? PlanFigures() : mean_figures(backward)};
  }
};

double tokens_per_server(const PlanRequest& request, const TokenLayout& layout) {
  const auto with_tokens = std::count_if(request.token_shares.begin(), request.token_shares.end(),
                                         [](double share) { return share > 0; });
  return static_cast<double>(layout.num_tokens()) /
         static_cast<double>(request.chunks * static_cast<int64_t>(with_tokens));
}

class Study {
 public:
  explicit Study(const PlanRequest& request)
      : request_(request),
        baseline_figures_(request.baselines.size()),
        worst_ratios_(request.baselines.size(), 0.0) {}

  void add(const LengthBatch& batch) {
    TokenLayout layout = TokenLayout::make(
        batch.lengths, {.chunks = request_.chunks, .shares = request_.token_shares});
    const PlanningCosts costs =
        request_.costs
            ? *request_.costs
            : planning_costs(request_.target, request_.speeds, tokens_per_server(request_, layout));
    for (int chunk = 0; chunk < layout.num_chunks(); ++chunk) {
      PlannedAttention forward = plan(layout, chunk, Direction::kForward, costs);
      PlannedAttention backward;
      if (request_.backward) backward = plan(layout, chunk, Direction::kBackward, costs);
      if (example_) continue;
      example_ = PlanExample{layout, chunk, costs, std::move(forward), std::move(backward)};
    }
    for (size_t idx = 0; idx < request_.baselines.size(); ++idx) {
      for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
        add_baseline(batch, layout, direction, costs, idx);
      }
    }
  }

  PlanStudy finish() && {
    PlanStudy study{request_, ours_.mean(), {}, std::move(*example_)};
    for (size_t idx = 0; idx < request_.baselines.size(); ++idx) {
      const FigureLists& figures = baseline_figures_[idx];
      // A mean over other batches than ours would compare nothing.
      const bool applies = std::ssize(figures.forward) == request_.batches.count;
      study.baselines.push_back({request_.baselines[idx], applies,
                                 applies ? figures.mean() : BothDirections(), worst_ratios_[idx]});
    }
    return study;
  }

 private:
  PlannedAttention plan(const TokenLayout& layout, int chunk, Direction direction,
                        const PlanningCosts& costs) {
    const auto start = Clock::now();
    PlannedAttention planned =
        plan_attention(layout, chunk, direction, costs, request_.planner, &scratch_);
    const DispatchLayout dispatch = dispatch_layout(layout, planned.plan);
    const double plan_s = seconds_since(start);
    LONGSPAN_CHECK(dispatch.servers.size() == planned.plan.servers.size(), "dispatch of ",
                   dispatch.servers.size(), " servers");
    const double bound_s = lower_bound_s(layout, chunk, direction, costs);
    ours_.of(direction).push_back(
        figures_of(layout, planned.plan, planned.prediction, bound_s, plan_s));
    return planned;
  }

  void add_baseline(const LengthBatch& batch, const TokenLayout& layout, Direction direction,
                    const PlanningCosts& costs, size_t idx) {
    const BaselineBatch seen{.input = {layout, direction},
                             .pack_borders = batch.pack_borders,
                             .wlb_breakpoint_tokens = wlb_breakpoint_tokens(request_.target.model)};
    const auto start = Clock::now();
    const auto baseline = make_baseline(request_.baselines[idx], seen, costs);
    const double plan_s = seconds_since(start);
    if (!baseline) return;
    const PlanPrediction prediction = predict_baseline(layout, *baseline, costs);
    const PlanFigures& ours = ours_.of(direction).back();
    if (prediction.makespan_s > 0) {
      worst_ratios_[idx] = std::max(worst_ratios_[idx], ours.makespan_s / prediction.makespan_s);
    }
    baseline_figures_[idx].of(direction).push_back(
        figures_of(layout, baseline->plan, prediction, ours.lower_bound_s, plan_s));
  }

  const PlanRequest& request_;
  PlannerScratch scratch_;  // kept from batch to batch, as a run keeps it
  FigureLists ours_;
  std::vector<FigureLists> baseline_figures_;
  std::vector<double> worst_ratios_;
  std::optional<PlanExample> example_;
};

void check_request(const PlanRequest& request) {
  LONGSPAN_CHECK(request.batches.count > 0, "no batches to plan");
  for (const std::string& name : request.baselines) check_baseline_name(name);
  if (request.baselines.empty()) return;
  const bool all_equal =
      std::all_of(request.speeds.begin(), request.speeds.end(), [](double v) { return v == 1; });
  if (request.chunks != 1 || !all_equal) {
    throw UserError(
        "baselines place whole micro-batches on equal servers; plan with --layout.chunks=1 and "
        "in-place servers to compare");
  }
}

}  // namespace

PlanStudy study_plans(PlanRequest request, const std::function<void(int64_t)>& progress) {
  check_request(request);
  Study study(request);
  for (int64_t done = 0; done < request.batches.count; ++done) {
    study.add(request.batches.next());
    if (progress) progress(done + 1);
  }
  return std::move(study).finish();
}

}  // namespace longspan
