// What plans are made for: a model's attention on servers of a cluster, as costs.
//
//   PlanTarget target{.model = preset_spec("llama_8b"), .cluster = cluster_preset("h200_50"),
//                     .profile = device_profile("h200"), .gpus_per_server = 8};
//   const PlanningCosts costs = planning_costs(target, speeds, 131072);
//
// Windows: while one chunk's rows are on the wire, the linear layers of the other run (ping-pong).
// So each leg has as long as the linear work of a server's tokens of one chunk takes in one layer,
// at the profile's matrix rate; backward twice that. Without overlap the windows are 0, and so they
// are for index scoring, whose exchanges nothing hides. Pure; any thread.
#pragma once

#include "cost/cluster_spec.h"
#include "cost/device_profile.h"
#include "planner/planning_costs.h"
#include "spec/model_spec.h"

namespace longspan {

struct PlanTarget {
  ModelSpec model;
  int64_t value_bytes = 2;
  ClusterSpec cluster;
  DeviceProfile profile;
  int64_t gpus_per_server = 1;
  bool overlap = true;
  bool on_gpu = true;
};

// What is planned: tasks of core attention, or, of a model that has none, of scoring its index. A
// model with linear attention alone has neither.
bool plans_index_scoring(const ModelSpec& model);

// Forward, of one layer: projections and the feed-forward part; of a hybrid's layers the mean.
double linear_flops_per_token(const ModelSpec& model);

// The length at which a document's attention costs as much as its linear work, as WLB packing uses
// it: the published figure where there is one (8B, 34B, 70B Llama shapes).
double wlb_breakpoint_tokens(const ModelSpec& model);

// UserError if the servers' GPUs do not divide the query heads.
AttentionSizes attention_sizes(const PlanTarget& target);

// Of scoring the model's index, as runs have them.
PlanningCosts index_costs(const PlanTarget& target, int servers);

// `tokens`: of one server in one chunk, for the windows.
PlanningCosts planning_costs(const PlanTarget& target, const std::vector<double>& speed,
                             double tokens);

}  // namespace longspan
