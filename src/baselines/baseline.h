// Policies to compare the planner with: what other systems would do with the same documents.
//
//   const Baseline baseline = zigzag({layout, Direction::kForward});
//   predict_baseline(layout, baseline, costs).makespan_s;
//   run(runnable_plan(layout, baseline));           // the same placement as an ordinary plan
//
// A policy places queries, so its tasks stand in an ordinary AttentionPlan. But it also has its own
// place for tokens (zigzag keeps slices r and 2P - 1 - r on rank r), which a TokenLayout, one
// stretch of the line for each rank, cannot say. So a baseline carries its homes beside the plan,
// and two uses of it differ:
//
//   predict_baseline  traffic as the policy itself has it, from its own homes:
//                       kNeeded  the rows that a server lacks come straight from their homes, once
//                       kGather  every rank of a group gets all keys of the group, as an
//                                all-gather that uses links at their best: each row enters a node
//                                once, spread over its ranks, and goes round inside it; backward
//                                also brings the gradients of keys back the same way
//   runnable_plan     tasks on the homes of `layout`: queries travel too. For running, not for
//                     judging traffic.
//
// Tasks of a server are one launch. Baselines know one chunk: the whole micro-batch. Values; pure
// functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "planner/attention_plan.h"
#include "planner/plan_prediction.h"

namespace longspan {

struct HomeStretch {
  Range line;
  int rank = 0;
};

enum class BaselineExchange { kNeeded, kGather };

struct Baseline {
  AttentionPlan plan;              // tasks and buffer rows; no transfers
  std::vector<HomeStretch> homes;  // in line order, covering the line
  BaselineExchange exchange = BaselineExchange::kNeeded;
  int ranks_per_group = 1;            // kGather: ranks [g n, (g + 1) n) share their keys
  bool keys_stored_per_task = false;  // a copy for each task, not one for each server
};

// What a policy sees.
struct BaselineInput {
  const TokenLayout& layout;
  Direction direction = Direction::kForward;
  // Token shares, speeds and base times are not seen: the policies know equal ranks only.
};

PlanPrediction predict_baseline(const TokenLayout& layout, const Baseline& baseline,
                                const PlanningCosts& costs);

AttentionPlan runnable_plan(const TokenLayout& layout, const Baseline& baseline);

// The line ranges whose home each rank is, normalized.
std::vector<std::vector<Range>> rows_of_ranks(const Baseline& baseline);

// For policies: an empty baseline for the input's ranks, and what follows from tasks and homes.
Baseline begin_baseline(const BaselineInput& input, BaselineExchange exchange);
void add_task(const DocumentPart& queries, int rank, Baseline* baseline);
void finish_baseline(const TokenLayout& layout, Baseline* baseline);

}  // namespace longspan
