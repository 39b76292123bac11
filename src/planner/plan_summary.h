// What a plan does, in numbers: load, rows and imbalance for each server.
//
//   PlanSummary summary = summarize(layout, plan);
//   summary.imbalance;                       // 1.03: the busiest server has 3 % above the mean
//   summary.servers[2].out_received.key;     // key rows that rank 2 fetches
//
// Loads are pairs, exact and charged by whole tiles (cost/charged_pairs.h). Rows become bytes by
// the widths of the model, which a plan does not know. Pure; any thread.
#pragma once

#include <vector>

#include "planner/attention_plan.h"

namespace longspan {

struct RowCounts {
  int64_t query = 0;
  int64_t key = 0;
  // Of these, the rows that travel in the accumulation type.
  int64_t partial_query = 0;
  int64_t partial_key = 0;
  bool operator==(const RowCounts&) const = default;
};

struct ServerSummary {
  int64_t tasks = 0;
  int64_t pairs = 0;
  int64_t charged_pairs = 0;
  int64_t query_rows = 0;  // of its buffers
  int64_t key_rows = 0;
  RowCounts out_sent;
  RowCounts out_received;
  RowCounts back_sent;
  RowCounts back_received;
};

struct PlanSummary {
  std::vector<ServerSummary> servers;
  // Maximum over mean of charged pairs over speed, over the servers; the mean is total pairs over
  // total speed. 1 if the chunk is empty.
  double imbalance = 1;
  // The same if every query stayed home. If ranks with tokens are no servers, over the ranks with
  // tokens, as equally fast.
  double home_imbalance = 1;
};

// `server_speed` as in PlanningCosts; empty: all ranks have speed 1.
PlanSummary summarize(const TokenLayout& layout, const AttentionPlan& plan,
                      const std::vector<double>& server_speed = {});

}  // namespace longspan
