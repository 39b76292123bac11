// Plans batches of documents, by longspan's planner and by baselines, and measures.
//
//   const PlanStudy study = study_plans(request);
//   study.ours.forward.makespan_s;               // mean over batches and chunks
//   study.example.plans.backward.prediction;     // of the first batch, for people to look at
//
// Each plan is made in one thread of its own time: plan_ms is plan and dispatch layout. Baselines
// that do not apply to a batch (baselines/registry.h) are listed as such. Any thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plan_report/length_batches.h"
#include "plan_report/plan_figures.h"
#include "plan_report/plan_target.h"
#include "planner/attention_planner.h"

namespace longspan {

struct PlanRequest {
  std::string title;  // where the documents come from
  BatchSource batches;
  PlanTarget target;
  bool backward = true;  // scoring an index has none
  int chunks = 1;
  std::vector<double> token_shares;  // of each server; 0 for a dedicated one
  std::vector<double> speeds;        // 0 for ranks that are no servers
  // As a run has them; else those of the target.
  std::optional<PlanningCosts> costs = {};
  AttentionPlannerOptions planner;
  std::vector<std::string> baselines;
};

struct BothDirections {
  PlanFigures forward;
  PlanFigures backward;
};

struct BaselineStudy {
  std::string name;
  bool applies = true;
  BothDirections mean;
  // Our makespan over the baseline's, in the batch and direction where it is highest.
  double worst_ratio = 0;
};

// One chunk with its plans and all that they were made from.
struct PlanExample {
  TokenLayout layout;
  int chunk = 0;
  PlanningCosts costs;
  PlannedAttention forward;
  PlannedAttention backward;  // no servers: there is none
};

struct PlanStudy {
  PlanRequest request;
  BothDirections ours;
  std::vector<BaselineStudy> baselines;
  PlanExample example;  // first batch, first chunk
};

// `progress` hears after each batch how many are done.
PlanStudy study_plans(PlanRequest request, const std::function<void(int64_t)>& progress = {});

}  // namespace longspan
