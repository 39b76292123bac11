// How a step's tokens spread over experts: over all ranks, for the log and for the selection bias.
//
//   const std::vector<ExpertLoads> loads = expert_loads(spec, totals, comm);   // collective
//   metrics.expert_imbalance = expert_imbalance(loads);
//   move_selection_bias(loads, rate, model.parameters(), store);               // after the update
//
// Why counts and not means of ranks: they are exact, so the bias moves alike on any number of ranks
// and for any expert group. Functions; all ranks call them in the same order.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "spec/parameter_table.h"
#include "train/executor.h"
#include "train/parameter_store.h"

namespace longspan {

struct ExpertLoads {
  int64_t layer = 0;
  std::vector<int64_t> tokens;  // of each expert
};

// Of the layers with experts, in order.
std::vector<ExpertLoads> expert_loads(const ModelSpec& spec, const StepTotals& totals,
                                      Communicator& comm);

// The busiest expert over the mean, of the worst layer; none without experts.
std::optional<double> expert_imbalance(const std::vector<ExpertLoads>& loads);
// Experts without a token, over all layers; none without experts.
std::optional<int64_t> idle_experts(const std::vector<ExpertLoads>& loads);

// Of every layer (experts/selection_bias.h), in the master weights; a rate of 0 does nothing.
void move_selection_bias(const std::vector<ExpertLoads>& loads, double rate,
                         const ParameterTable& parameters, ParameterStore& store);

}  // namespace longspan
