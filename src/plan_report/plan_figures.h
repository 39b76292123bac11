// The figures by which plans are judged, of one plan and as means over batches.
//
//   const PlanFigures figures = figures_of(layout, plan, prediction, bound_s, plan_s);
//   mean_figures({a, b, c}).makespan_s;
//
// Bytes are those of one device on the way to servers (the out leg: queries, keys and values;
// backward their gradients' inputs as well); what comes back is counted apart. Times are
// predictions of the cost model; plan_ms is a measured time. Values; pure; any thread.
#pragma once

#include <vector>

#include "formats/json.h"
#include "planner/plan_prediction.h"

namespace longspan {

struct PlanFigures {
  double max_over_mean = 0;
  double makespan_s = 0;
  double lower_bound_s = 0;
  double send_bytes_mean = 0;
  double send_bytes_max = 0;
  double recv_bytes_max = 0;
  double kv_copies_max = 0;
  double aligned_share = 0;  // of task cuts inside documents: multiples of a block
  double plan_ms = 0;        // dispatch layout included; of means: the median
  // Beside those: what explains them.
  double recv_bytes_mean = 0;
  double send_between_nodes_bytes_max = 0;  // of one rank's send bytes, those that leave its node
  double back_send_bytes_mean = 0;
  double back_send_bytes_max = 0;
  double back_recv_bytes_max = 0;
  double memory_bytes_max = 0;
  double kv_rows_max = 0;  // stored on one server, copies counted
  double compute_s = 0;
  double enter_s = 0;
  double exit_s = 0;
};

PlanFigures figures_of(const TokenLayout& layout, const AttentionPlan& plan,
                       const PlanPrediction& prediction, double bound_s, double plan_s);

// Of at least one.
PlanFigures mean_figures(const std::vector<PlanFigures>& figures);

// Share of the cuts of tasks, at neither end of their document nor on a piece border, that are
// multiples of kBlockTokens; 1 without such cuts.
double aligned_share(const TokenLayout& layout, const AttentionPlan& plan);

Json to_json(const PlanFigures& figures);

}  // namespace longspan
